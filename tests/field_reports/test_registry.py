"""Plugins and processes: who is opened, who collides, and that every worker sees the same hub."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attnhub
from attnhub.core import discovery, env
from attnhub.core.registry import Registry
from attnhub.errors import PluginError, PluginWarning, UnknownName
from attnhub.plugin import Op, hookimpl
from attnhub.testing.faults import Entry
from tests.core.fakes import EVERYTHING, FAST, SLOW, backend, dispatcher, plugin, problem
from tests.field_reports.site_folder import install, python
from tests.field_reports.stubs import OP, norm_backend, register_ones_and_twos


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Discovery starts anew, here and after the test."""
    shared = discovery.replace_default(None)
    env.environment.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    discovery.replace_default(shared)
    env.environment.cache_clear()


@pytest.mark.parametrize(
    ("listed", "opened"),
    [
        pytest.param("", ["one", "two"], id="all"),
        pytest.param("two", ["two"], id="one named"),
        pytest.param("-one", ["two"], id="one denied"),
        pytest.param("- two , one", [], id="all denied, with blanks"),
        pytest.param("-one,-two", [], id="each denied by itself"),
        pytest.param(" ", ["one", "two"], id="empty"),
    ],
)
def test_a_denied_plugin_is_never_opened(
    forgetful: pytest.MonkeyPatch, listed: str, opened: list[str]
) -> None:
    seen: list[str] = []

    def entry(name: str) -> Entry:
        return Entry(name=name, load=lambda: seen.append(name) or plugin())

    forgetful.setattr(discovery, "entry_points", lambda: [entry("one"), entry("two")])
    forgetful.setenv("ATTNHUB_PLUGINS", listed)
    assert sorted(discovery.default().plugins) == ["attnhub", *opened]
    assert seen == opened


def test_installed_packages_are_searched_once_a_process(forgetful: pytest.MonkeyPatch) -> None:
    """So the search needs no cache on disk that could be stale."""
    searched: list[int] = []
    forgetful.setattr(discovery, "entry_points", lambda: searched.append(1) or [])
    for tokens in range(1, 40):
        attnhub.explain(OP, device="h100", dtype="float16", hidden=8, tokens=tokens)
        attnhub.norm.rmsnorm(torch.ones(tokens, 8), torch.ones(8))
    assert searched == [1]


def test_an_unknown_variable_stops_the_first_call(isolated_registry: Registry) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNHUB_PREFER_FA2", "1")
        env.environment.cache_clear()
        with pytest.raises(UnknownName, match=r"'ATTNHUB_PREFER_FA2'.*unset or rename it"):
            attnhub.norm.rmsnorm(torch.ones(3, 8), torch.ones(8))


def test_no_name_is_registered_twice(isolated_registry: Registry) -> None:
    """Whoever comes second is refused whole; the first keeps its name."""
    isolated_registry.register(plugin(norm_backend("ones", 0.1, "ones")), "first")
    before = isolated_registry.names(), isolated_registry.ops, isolated_registry.generation

    class NewOp:
        @hookimpl
        def attnhub_ops(self) -> list[Op]:
            return [dataclasses.replace(isolated_registry.op(OP), summary="mine")]

    clashes: list[tuple[str, Any, str]] = [
        ("first", plugin(norm_backend("other", 0.1, "twos")), "already registered"),
        (
            "second",
            plugin(norm_backend("new", 0.1, "twos"), norm_backend("ones", 0.1, "twos")),
            "'norm.rmsnorm' already has a backend 'ones'",
        ),
        ("third", NewOp(), "op 'norm.rmsnorm' is already registered"),
    ]
    for name, theirs, message in clashes:
        with pytest.raises(PluginError, match=message):
            isolated_registry.register(theirs, name)
    now = isolated_registry.names(), isolated_registry.ops, isolated_registry.generation
    assert now == before


def test_one_plugin_cannot_offer_one_name_twice(isolated_registry: Registry) -> None:
    twice = plugin(norm_backend("ones", 0.1, "ones"), norm_backend("ones", 0.1, "twos"))
    with pytest.raises(PluginError, match=r"'norm\.rmsnorm' already has a backend 'ones'"):
        isolated_registry.register(twice, "twice")
    assert "ones" not in isolated_registry.names()


def test_memory_that_runs_out_while_planning_is_contained() -> None:
    """Even an error of Python's own, from a candidate that tried too much."""
    greedy = dataclasses.replace(FAST, load="tests.field_reports.stubs:exhausted")
    d = dispatcher(greedy, EVERYTHING, SLOW)
    reported = pytest.warns(PluginWarning, match="MemoryError: workspace of 1 TB")
    slower = pytest.warns(attnhub.errors.PerformanceWarning, match="MemoryError")
    with reported, slower:
        plan, _ = d.plan(problem())
    assert plan.run() == "slow"
    assert d.plan(problem(tokens=4096))[0].run() == "slow"  # it is not tried, nor told, again


def test_a_plugin_that_fails_leaves_results_to_the_next(isolated_registry: Registry) -> None:
    register_ones_and_twos(isolated_registry)
    isolated_registry.register(plugin(norm_backend("greedy", 0.01, "exhausted")), "greedy")
    with pytest.warns(PluginWarning, match="'greedy' set aside"):
        assert attnhub.norm.rmsnorm(torch.zeros(1, 2), torch.ones(2)).tolist() == [[1.0, 1.0]]


def test_a_rule_over_two_fields_refuses_what_each_alone_allows() -> None:
    """A draft width that only pages of one token can take, say."""
    from attnhub.plugin import AnyValue, Capability, OneOf, Rule

    capped = frozenset({"cap"})
    sheet = Capability(
        accepts={
            "dim": AnyValue(),
            "page_size": AnyValue(),
            "features": OneOf(frozenset(), capped),
        },
        rules=(
            Rule(
                when={"features": OneOf(capped)},
                then={"page_size": OneOf(1)},
                why="the cap is applied per token",
            ),
        ),
    )
    d = dispatcher(backend("ruled", capability=sheet))
    assert d.decide(problem(page_size=16)).chosen
    assert d.decide(problem(page_size=1, features=capped)).chosen
    both = d.decide(problem(page_size=16, features=capped))
    (row,) = (r for r in both.rejected if r.name == "ruled")
    assert [str(r) for r in row.reasons] == [
        "page_size is 16, needs 1: the cap is applied per token (fits if page_size is 1)"
    ]


_MANIFEST = """
from attnhub.plugin import hookimpl
from tests.core.fakes import EVERYTHING, FAST, SLOW, plugin

_offered = plugin(FAST, SLOW, EVERYTHING, ops=True)

@hookimpl
def attnhub_ops():
    return _offered.attnhub_ops()

@hookimpl
def attnhub_backends():
    return _offered.attnhub_backends()
"""

_WORKERS = """
import hashlib, json, multiprocessing, subprocess, sys
import attnhub
from attnhub.plugin import registry

def digest():
    hub = registry()
    names = [f"{op}={b.plugin}:{b.name}" for op in hub.ops for b in hub.backends(op)]
    assert "fake.op=theirs:fast" in names
    devices = "cpu h100 h20 sm_80".split()
    decisions = [attnhub.explain("fake.op", device=d, dim=40).to_json() for d in devices]
    return hashlib.sha256(json.dumps([sorted(names), decisions]).encode()).hexdigest()

if __name__ == "__main__":
    found = {"parent": digest()}
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.apply(digest)
    code = "import main; print(main.digest())"  # as a launcher that starts interpreters does
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found["launched"] = done.stdout.strip()
    assert "torch" not in sys.modules
    print(json.dumps(found))
"""


def test_every_worker_sees_the_same_hub_and_decides_alike(tmp_path: Path) -> None:
    """Spawned, forked, served or launched: equal registries, and equal decisions from them."""
    install(tmp_path, "theirs", manifest=_MANIFEST)
    found = json.loads(python(_WORKERS, tmp_path, ATTNHUB_PLUGINS="theirs"))
    assert list(found) == ["parent", "spawn", "fork", "forkserver", "launched"]
    assert set(found.values()) == {found["parent"]}
