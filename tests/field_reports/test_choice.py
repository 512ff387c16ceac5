"""Who may be chosen: an explicit choice is never replaced, a rule reaches no further than it says.

The reports that each test stands for are listed in ``docs/field_reports.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import attnhub
from attnhub import BatchAttention, Override, PagedKV
from attnhub.core import options
from attnhub.core import profile as profiles
from attnhub.core.dispatch import Dispatcher
from attnhub.core.env import environment
from attnhub.core.profile import Profile
from attnhub.core.registry import Registry
from attnhub.errors import BackendUnsupported, UnknownName
from attnhub.plugin import AnyValue, hookimpl
from tests.core.fakes import EVERYTHING, FAST, SLOW, backend, dispatcher, fixed, plugin, problem

SCOPES = ("argument", "use", "config", "environment")
by_scope = pytest.mark.parametrize("scope", SCOPES)

_ATTENTION = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "dtype": "float32"}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment that is read anew, here and after the test."""

    def forget() -> None:
        environment.cache_clear()
        profiles.load.cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


@contextlib.contextmanager
def required(name: str, scope: str, d: Dispatcher, env: pytest.MonkeyPatch) -> Iterator[str]:
    """Require ``name`` in one scope; yields what to give as the argument."""
    if scope == "environment":
        env.setenv("ATTNHUB_BACKEND", name)
    if scope == "config":
        d.rules = (Override(backend=name),)
    environment.cache_clear()  # as a process that starts with these settings would see them
    d.registry.touch()
    used = options.push(Override(backend=name, scope="use"))
    with used if scope == "use" else contextlib.nullcontext():
        yield name if scope == "argument" else ""


@by_scope
def test_an_explicit_choice_runs_whatever_was_measured(
    scope: str, env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither cost model nor tuning replaces it, and every scope prepares the same kind of plan."""
    p = problem()
    rows = {("fast", "fake.op", p.signature()): 0.001, ("slow", "fake.op", p.signature()): 1e9}
    Profile(device=p.device.name, times=rows).save(tmp_path / "tuned.json")
    env.setenv("ATTNHUB_PROFILE", str(tmp_path / "tuned.json"))
    d = dispatcher(EVERYTHING, FAST, SLOW)
    assert d.plan(p)[0].run() == "fast"
    with required("slow", scope, d, env) as argument:
        plan, decision = d.plan(p, argument)
    assert (plan.run(), plan.made_by) == ("slow", "slow")
    assert [c.name for c in decision.ranked] == ["slow"]


@by_scope
def test_an_explicit_choice_that_does_not_fit_raises_and_names_its_scope(
    scope: str, env: pytest.MonkeyPatch
) -> None:
    d = dispatcher(FAST, EVERYTHING)
    with required("fast", scope, d, env) as argument:
        message = rf"'fast' is required \({scope}\) but cannot serve this(.|\n)*dim is 40"
        with pytest.raises(BackendUnsupported, match=message) as info:
            d.plan(problem(dim=40), argument)
    assert info.value.decision.ranked == ()


def test_a_preference_that_does_not_fit_is_shown_with_its_reasons() -> None:
    """``prefer`` may fall through, but who asked for what stays visible."""
    with options.push(Override(backend="fast", mode="prefer", scope="use")):
        decision = dispatcher(FAST, EVERYTHING).decide(problem(dim=40))
    assert decision.overrides == ("use: prefer fast (does not fit)",)
    assert "fast" in [r.name for r in decision.rejected if r.reasons]
    assert "dim is 40, needs 64 or 128" in str(decision)


def test_a_rule_for_one_op_leaves_the_others_alone(isolated_registry: Registry) -> None:
    """A strict choice for self-attention must not break another component."""
    facts = {"device": "cpu", "num_heads": 4, "dtype": "float32", "page_size": 4}
    attnhub.configure(Override(backend="torch_sdpa", op="attention"))
    assert _names("attention", device="cpu", **_ATTENTION) == ["torch_sdpa"]
    assert _names("mla", **facts) == ["reference"]
    assert _names("norm.rmsnorm", device="cpu", dtype="float32", hidden=8) == ["reference"]
    attnhub.configure(Override(backend="torch_sdpa"))  # every op that it serves
    assert _names("mla", **facts) == ["reference"]
    attnhub.configure(Override(backend="torch_sdpa", op="mla"))  # an op that it does not serve
    mla = attnhub.BatchMLA(4, torch.float32, page_size=4, scale=1.0, device="cpu")
    with pytest.raises(BackendUnsupported, match=r"'torch_sdpa' is required \(config\)(.|\n)*mla"):
        mla.plan(_i32(0, 1), PagedKV(_i32(0, 1), _i32(0), _i32(1)))


def _names(op: str, **facts: object) -> list[str]:
    return [c.name for c in attnhub.explain(op, **facts).ranked]


def _i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_two_objects_of_one_process_have_their_own_backends() -> None:
    """A target model and its draft model, say."""
    table = PagedKV(_i32(0, 1), _i32(0), _i32(3))
    chosen = []
    for name in ("reference", "torch_sdpa", ""):
        attn = BatchAttention(
            4, 2, 8, torch.float32, attnhub.Paged(4), device="cpu", backend=name
        )  # fmt: skip
        with attnhub.use("reference"):
            attn.plan(_i32(0, 1), table)
        chosen += [attn.explain().chosen]
    assert [c.name for c in chosen if c] == ["reference", "torch_sdpa", "reference"]


def test_a_misspelt_backend_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(UnknownName, match="did you mean 'fa3_hopper'"), attnhub.use("fa3_hoper"):
        pass


def test_a_known_bad_version_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range with a hole: the release in it is refused, its neighbours are not."""
    d = dispatcher(backend("holed", torch=">=2.6,!=2.9.1", cost=fixed(1.0)), SLOW)
    seen = {}
    for version in ("2.9.0", "2.9.1", "2.10.0"):
        monkeypatch.setattr("attnhub.core.judge._torch_version", lambda version=version: version)
        d.registry.touch()
        seen[version] = [c.name for c in d.decide(problem()).ranked]
    assert seen == {
        "2.9.0": ["holed", "slow"],
        "2.9.1": ["slow"],
        "2.10.0": ["holed", "slow"],
    }


def test_a_plugin_of_another_version_is_ranked_anew() -> None:
    d = dispatcher(SLOW)
    d.registry.register(plugin(backend("tuned", cost=fixed(1.0))), "theirs", version="1.0")
    before = d.decide(problem())
    d.registry.unregister("theirs")
    d.registry.register(plugin(backend("tuned", cost=fixed(1e6))), "theirs", version="2.0")
    after = d.decide(problem())
    assert [c.name for c in before.ranked] == ["tuned", "slow"]
    assert [c.name for c in after.ranked] == ["slow", "tuned"]
    assert d.registry.plugins["theirs"].version == "2.0"


def test_a_sheet_can_be_widened_without_its_author(isolated_registry: Registry) -> None:
    """What one author has not tried yet is one registration away, under a name of its own."""
    sdpa = next(b for b in isolated_registry.backends("attention") if b.name == "torch_sdpa")
    (sheet,) = sdpa.sheets()
    wider = dataclasses.replace(sheet, accepts={**sheet.accepts, "q_dtype": AnyValue()})
    mine = dataclasses.replace(sdpa, name="sdpa_float64", capability=wider, plugin="")
    isolated_registry.register(plugin(mine), "mine")
    decision = attnhub.explain("attention", device="cpu", **_ATTENTION)
    assert "sdpa_float64" in [c.name for c in decision.ranked]


def test_whoever_listens_gets_the_rejected_list_of_each_new_decision() -> None:
    heard = []

    class Listener:
        @hookimpl
        def attnhub_on_decision(self, decision: attnhub.Decision) -> None:
            heard.append(decision)

    d = dispatcher(FAST, SLOW)
    d.registry.register(Listener(), "listener")
    for _ in range(3):
        d.plan(problem("a100", dim=40))
    (decision,) = heard
    assert [(r.name, {x.field for x in r.reasons}) for r in decision.rejected if r.reasons] == [
        ("fast", {"sm", "dim"})
    ]


@pytest.mark.parametrize("page_size", [5, 16])
def test_a_page_size_is_negotiated_aloud_or_not_at_all(page_size: int) -> None:
    """A backend with needs of its own is passed over, or refuses; the size is never changed."""
    d = dispatcher(FAST, SLOW)
    decision = d.decide(problem(page_size=page_size))
    assert f"page_size={page_size}" in decision.problem
    assert [c.name for c in decision.ranked] == (["slow"] if page_size == 5 else ["fast", "slow"])
    if page_size == 5:
        with pytest.raises(BackendUnsupported, match="page_size is 5, needs a multiple of 16"):
            d.plan(problem(page_size=5), backend="fast")
