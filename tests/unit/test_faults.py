"""A plugin that misbehaves is set aside and reported once; everything else goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import attnhub
from attnhub.core.decision import Decision
from attnhub.core.reason import Code
from attnhub.core.registry import Registry
from attnhub.errors import BackendUnsupported, PluginWarning, UnknownName
from attnhub.testing import faults
from attnhub.testing.conformance import Nonconformance, cases
from attnhub.testing.faults import OP, Entry

pytestmark = pytest.mark.usefixtures("isolated_registry")

# Fault, what its report says.
AT_LOAD = [
    (faults.import_error, "libmissing"),
    (faults.exit_at_import, "SystemExit: 3"),
    (faults.wrong_api, "needs plugin interface >=99"),
    (faults.misspelt_hook, "attnhub_backend"),
    (faults.duplicate_backend, "already has a backend 'reference'"),
]
# Fault, the code of the reason that decisions then show, what it says.
SET_ASIDE = [
    (faults.unknown_field, Code.IMPORT, "no field 'hiden'"),
    (faults.crash_in_probe, Code.PROBE, "no driver"),
    (faults.missing_module, Code.IMPORT, "attnhub_no_such_module"),
    (faults.crash_in_plan, Code.IMPORT, "plan() failed: RuntimeError: no kernel"),
]
# Fault of a backend that is usable all the same, what its report says.
USABLE = [
    (faults.slow_import, "its manifest took"),
    (faults.crash_in_cost, "the cost model of backend 'crash_in_cost' failed: ZeroDivisionError"),
    (faults.crash_in_hook, "no telemetry"),
]
ALL = [factory for factory, *_ in (*AT_LOAD, *SET_ASIDE, *USABLE)] + [faults.wrong_numbers]

Factory = Callable[[], Entry]


def name_of(value: object) -> str | None:
    return value.__name__ if callable(value) else None


def norm() -> torch.Tensor:
    x = torch.tensor([[3.0, 4.0]])
    return attnhub.norm.rmsnorm(x, torch.ones(2), eps=0.0)


def explain() -> Decision:
    return attnhub.explain(OP, device="cpu", dtype="float32", hidden=2)


def reports(action: Callable[[], object]) -> list[str]:
    """What is reported while `action` runs twice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
        action()
    assert {w.category for w in caught} <= {PluginWarning}
    return [str(w.message) for w in caught]


def load_and_call(registry: Registry, factory: Factory) -> list[str]:
    """Load the plugin once and call the op twice; return what was reported."""
    loaded: list[Entry] = []

    def once() -> None:
        if not loaded:
            loaded.append(factory())
            registry.load_entry_point(loaded[0])
        torch.testing.assert_close(norm(), torch.tensor([[3.0, 4.0]]) / 12.5**0.5)

    return reports(once)


@pytest.mark.parametrize(("factory", "text"), AT_LOAD, ids=name_of)
def test_load_fault(isolated_registry: Registry, factory: Factory, text: str) -> None:
    before = isolated_registry.names()
    (report,) = load_and_call(isolated_registry, factory)
    name = factory.__name__
    assert text in report
    assert text in isolated_registry.plugins[name].error
    assert isolated_registry.plugins[name].backends == ()
    assert isolated_registry.names() == before
    with pytest.raises(UnknownName, match=name), attnhub.use(name):
        pass


@pytest.mark.parametrize(("factory", "code", "text"), SET_ASIDE, ids=name_of)
def test_choice_fault(isolated_registry: Registry, factory: Factory, code: Code, text: str) -> None:
    (report,) = load_and_call(isolated_registry, factory)
    name = factory.__name__
    assert text in report
    decision = explain()
    assert decision.chosen is not None
    assert decision.chosen.name == "reference"
    (reason,) = next(row.reasons for row in decision.rejected if row.name == name)
    assert reason.code is code
    assert text in str(reason)
    with attnhub.use(name), pytest.raises(BackendUnsupported, match=reason.field):
        norm()


def test_required_crash_is_reported_at_the_call(isolated_registry: Registry) -> None:
    isolated_registry.load_entry_point(faults.crash_in_plan())
    with (
        attnhub.use("crash_in_plan"),
        pytest.warns(PluginWarning, match="no kernel"),
        pytest.raises(BackendUnsupported, match="no kernel"),
    ):
        norm()


@pytest.mark.parametrize(("factory", "text"), USABLE, ids=name_of)
def test_usable_all_the_same(isolated_registry: Registry, factory: Factory, text: str) -> None:
    (report,) = load_and_call(isolated_registry, factory)
    assert text in report
    name = factory.__name__
    with attnhub.use(name):
        torch.testing.assert_close(norm(), torch.tensor([[3.0, 4.0]]) / 12.5**0.5)
    assert name in [candidate.name for candidate in explain().ranked]


def test_unknown_cost_ranks_last_and_says_why(isolated_registry: Registry) -> None:
    isolated_registry.load_entry_point(faults.crash_in_cost())
    with pytest.warns(PluginWarning, match="cost model"):
        ranked = explain().ranked
    assert [candidate.name for candidate in ranked] == ["reference", "crash_in_cost"]
    assert "ZeroDivisionError" in ranked[-1].estimate.detail or "no bandwidth" in str(ranked[-1])


def test_only_conformance_sees_wrong_numbers(isolated_registry: Registry) -> None:
    isolated_registry.load_entry_point(faults.wrong_numbers())
    assert explain().chosen.name == "wrong_numbers"
    for case in cases("wrong_numbers", pairs=0):
        with pytest.raises(Nonconformance, match="beyond tolerance") as caught:
            case.check()
        assert "problem: norm.rmsnorm on " in str(caught.value)


def test_many_at_once(isolated_registry: Registry) -> None:
    set_aside = [factory.__name__ for factory, *_ in SET_ASIDE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        for factory in ALL:
            isolated_registry.load_entry_point(factory())
        for name in set_aside:
            with attnhub.use(name), pytest.raises(BackendUnsupported):
                norm()
        with attnhub.use("wrong_numbers", mode="deny"):
            torch.testing.assert_close(norm(), torch.tensor([[3.0, 4.0]]) / 12.5**0.5)
        assert {row.name for row in explain().rejected} == set(set_aside)
    broken = {name for name, info in isolated_registry.plugins.items() if info.error}
    assert broken == {factory.__name__ for factory, *_ in AT_LOAD}


def test_isolation_ends() -> None:
    from attnhub.core import discovery, dispatch

    shared, dispatcher = discovery.default(), dispatch.default()
    with dispatch.isolated() as registry:
        assert discovery.default() is registry is dispatch.default().registry
        assert list(registry.plugins) == ["attnhub"]
    assert discovery.default() is shared
    assert dispatch.default() is dispatcher


def test_isolation_reads_the_environment_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnhub.plugin import isolated

    monkeypatch.setenv("ATTNHUB_BACKEND", "deny:reference")
    with isolated(), pytest.raises(attnhub.errors.NoBackend, match="environment"):
        norm()
    monkeypatch.delenv("ATTNHUB_BACKEND")
    with isolated():
        norm()
