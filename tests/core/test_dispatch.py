"""Selection, ranking, reasons, hints and the decision as a value."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from attnhub.core import profile as profiles
from attnhub.core.decision import Decision
from attnhub.core.device import named
from attnhub.core.env import environment
from attnhub.core.profile import Profile
from attnhub.core.reason import Code
from attnhub.errors import (
    BackendUnsupported,
    InvalidArgument,
    NoBackend,
    PerformanceWarning,
    PluginWarning,
    UnknownName,
)
from attnhub.plugin import AnyValue, Capability, OneOf
from tests.core.fakes import (
    EVERYTHING,
    FAST,
    SLOW,
    FakeProblem,
    backend,
    dispatcher,
    fixed,
    problem,
)


def reasons_of(decision: Decision, name: str) -> dict[str, tuple[str, str, str]]:
    row = next(r for r in decision.rejected if r.name == name)
    return {r.field: (r.actual, r.accepted, r.hint) for r in row.reasons}


def test_the_cheapest_that_fits_is_chosen_and_the_rest_ranked() -> None:
    decision = dispatcher(SLOW, EVERYTHING, FAST).decide(problem())
    assert [c.name for c in decision.ranked] == ["fast", "slow", "everything"]


def test_every_reason_of_every_backend_is_collected_also_on_success() -> None:
    decision = dispatcher(EVERYTHING, FAST, SLOW).decide(
        problem("a100", dim=40, page_size=1, features=frozenset({"cap"}))
    )
    assert decision.chosen is not None
    assert decision.chosen.name == "everything"
    fast = reasons_of(decision, "fast")
    assert set(fast) == {"sm", "dim", "page_size", "features"}
    assert fast["dim"] == ("40", "64 or 128", "fits if dim is 64")
    assert fast["page_size"] == ("1", "a multiple of 16", "fits if page_size is 16")
    assert set(reasons_of(decision, "slow")) == {"features"}


def test_the_nearest_change_that_would_fit_is_named() -> None:
    decision = dispatcher(EVERYTHING, FAST).decide(problem(dim=40, page_size=5))
    assert "would fit: fast if dim is 64 and if page_size is 16" in decision.notes


def test_no_backend_carries_the_table() -> None:
    with pytest.raises(NoBackend, match=r"dim is 40, needs 64 or 128") as info:
        dispatcher(FAST).plan(problem(dim=40))
    assert info.value.decision.chosen is None


def test_required_and_unfit_is_an_error_never_a_substitute() -> None:
    with pytest.raises(BackendUnsupported, match=r"'fast' is required \(argument\)"):
        dispatcher(FAST, EVERYTHING).plan(problem(dim=40), backend="fast")


def test_a_decision_survives_json() -> None:
    decision = dispatcher(EVERYTHING, FAST, SLOW).decide(problem("a100", dim=40))
    assert Decision.from_json(decision.to_json()) == decision
    assert json.loads(decision.to_json())["device"] == "NVIDIA A100 80GB (sm_80)"


def test_equal_problems_share_one_decision_and_new_plugins_renew_it() -> None:
    d = dispatcher(EVERYTHING)
    first = d.decide(problem())
    assert d.decide(problem()) is first
    d.registry.touch()
    assert d.decide(problem()) is not first


@pytest.mark.parametrize(
    ("device", "chosen"), [("h100", "fast"), ("a100", "slow"), ("cpu", "everything")]
)
def test_each_device_gets_its_own_decision(device: str, chosen: str) -> None:
    decision = dispatcher(EVERYTHING, FAST, SLOW).decide(problem(device))
    assert decision.chosen is not None
    assert decision.chosen.name == chosen


def test_two_gpus_of_different_kind_in_one_process() -> None:
    """Two ordinals, two kinds: the arch of device 0 must not decide for device 1."""
    d = dispatcher(EVERYTHING, FAST, SLOW)
    first = dataclasses.replace(named("h100"), index=0)
    second = dataclasses.replace(named("a100"), index=1)
    chosen = [d.decide(dataclasses.replace(problem(), device=g)).chosen for g in (first, second)]
    assert [c.name for c in chosen if c] == ["fast", "slow"]


def test_the_product_counts_not_only_the_architecture() -> None:
    """H20 and H100 are both sm_90; the one with a sixth of the FLOPs ranks differently."""
    few = backend("few_flops", cost=fixed(50.0))
    many = backend("many_flops", cost=lambda p: fixed(1e4 / p.device.tflops)(p))
    names = {}
    for device in ("h100", "h20"):
        chosen = dispatcher(few, many).decide(problem(device)).chosen
        names[device] = chosen.name if chosen else None
    assert names == {"h100": "many_flops", "h20": "few_flops"}


def test_unknown_costs_rank_last_then_by_priority_then_by_name() -> None:
    unknown = fixed(None)
    d = dispatcher(
        backend("b", cost=unknown),
        backend("a", cost=unknown),
        backend("first", cost=unknown, priority=5),
        backend("known", cost=fixed(1e9)),
    )
    assert [c.name for c in d.decide(problem()).ranked] == ["known", "first", "a", "b"]


def test_a_cost_model_that_raises_is_contained() -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("oops")

    with pytest.warns(PluginWarning, match="the cost model of backend 'broken' failed"):
        decision = dispatcher(backend("broken", cost=broken)).decide(problem())
    assert decision.chosen is not None
    assert "cost model failed: oops" in decision.chosen.estimate.detail


def test_a_measured_profile_outranks_every_cost_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem()
    rows = {("slow", "fake.op", p.signature()): 0.5}
    path = tmp_path / "profile.json"
    Profile(device="NVIDIA H100 SXM", times=rows).save(path)
    monkeypatch.setenv("ATTNHUB_PROFILE", str(path))
    environment.cache_clear()
    profiles.load.cache_clear()
    try:
        chosen = dispatcher(EVERYTHING, FAST, SLOW).decide(p).chosen
        assert chosen is not None
        assert (chosen.name, chosen.estimate.source) == ("slow", "measured")
        other = dispatcher(EVERYTHING, FAST, SLOW).decide(problem(tokens=99)).chosen
        assert other is not None
        assert other.name == "fast"  # another bucket was not measured
    finally:
        monkeypatch.undo()
        environment.cache_clear()
        profiles.load.cache_clear()


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{}")
    with pytest.raises(InvalidArgument, match="is not a profile"):
        Profile.load(path)


def test_a_much_slower_choice_than_a_blocked_one_warns_once_with_the_reason() -> None:
    d = dispatcher(FAST, SLOW)
    p = problem(page_size=5)
    with pytest.warns(PerformanceWarning, match=r"fast .* is blocked because page_size is 5"):
        d.plan(p)
    d.plan(p)  # warnings are errors in this suite: a second one would fail


def test_a_policy_that_excludes_the_faster_one_is_no_warning() -> None:
    d = dispatcher(FAST, SLOW)
    plan, _ = d.plan(problem(), backend="slow")
    assert plan.run() == "slow"


def test_a_backend_that_somebody_required_is_no_warning() -> None:
    d = dispatcher(FAST, SLOW)
    plan, _ = d.plan(problem(page_size=5), backend="slow")
    assert plan.run() == "slow"


def test_a_backend_for_another_kind_of_call_is_no_warning() -> None:
    """A ragged kernel is not a faster way to run a paged batch."""
    kind = Capability(accepts={"dim": AnyValue(), "page_size": OneOf(16)})
    d = dispatcher(dataclasses.replace(FAST, capability=kind), SLOW)
    field = FakeProblem.__dataclass_fields__["page_size"]
    metadata = MappingProxyType({**field.metadata, "structural": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field, "metadata", metadata)
        plan, _ = d.plan(problem(page_size=5))
    assert plan.run() == "slow"


def test_a_device_that_can_never_run_it_is_no_warning() -> None:
    plan, _ = dispatcher(FAST, SLOW).plan(problem("a100"))
    assert plan.run() == "slow"


def test_a_probe_can_decline_and_is_not_asked_for_devices_by_name() -> None:
    declining = dataclasses.replace(FAST, probe="tests.core.test_dispatch:decline")
    d = dispatcher(declining, SLOW)
    simulated = d.decide(problem()).chosen
    assert simulated is not None
    assert simulated.name == "fast"
    present = dataclasses.replace(named("h100"), simulated=False)
    with pytest.warns(PluginWarning, match="the probe of backend 'fast' failed: OSError"):
        decision = d.decide(dataclasses.replace(problem(), device=present))
    assert decision.chosen is not None
    assert decision.chosen.name == "slow"
    row = next(r for r in decision.rejected if r.name == "fast")
    assert row.reasons[0].code is Code.PROBE


def decline(_: Any) -> list[Any]:
    raise OSError("no driver")


def test_a_torch_version_outside_the_range_is_a_reason() -> None:
    decision = dispatcher(EVERYTHING, backend("old", torch="<2.0")).decide(problem())
    row = next(r for r in decision.rejected if r.name == "old")
    assert (row.reasons[0].code, row.reasons[0].accepted) == (Code.VERSION, "<2.0")


def test_a_backend_that_does_not_import_is_set_aside_once_and_the_next_serves() -> None:
    d = dispatcher(dataclasses.replace(FAST, load="no_such_module:x"), SLOW)
    set_aside = pytest.warns(PluginWarning, match="'fast' set aside: .*no_such_module")
    with set_aside, pytest.warns(PerformanceWarning, match="no_such_module"):
        plan, decision = d.plan(problem())
    assert plan.run() == "slow"
    assert "No module named 'no_such_module'" in reasons_of(decision, "fast")["plugin"][0]
    with pytest.raises(BackendUnsupported, match="no_such_module"):
        d.plan(problem(), backend="fast")


def test_unknown_facts_and_missing_facts_of_explain() -> None:
    with pytest.raises(UnknownName, match="did you mean 'page_size'"):
        problem(page_sise=16)
    with pytest.raises(InvalidArgument, match="also needs the facts dim"):
        type(problem()).of("h100")


@pytest.mark.parametrize(
    ("name", "sm"), [("H100", 90), ("sm_89", 89), ("sm90a", 90), ("8.0", 80), ("rtx 5090", 120)]
)
def test_devices_by_name(name: str, sm: int) -> None:
    assert named(name).sm == sm


def test_a_newer_architecture_than_any_known_is_still_a_device() -> None:
    assert (named("sm_130").sm, named("sm_130").name) == (130, "typical sm_130")


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'h100'"):
        named("h1000x")
