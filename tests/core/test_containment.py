"""What a plugin may do wrong, one kind each: it is set aside and told of once, the next serves."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch

import attnhub
from attnhub.core.dispatch import Dispatcher
from attnhub.core.reason import Code
from attnhub.core.registry import Registry
from attnhub.errors import (
    BackendUnsupported,
    InvalidArgument,
    PluginError,
    PluginWarning,
)
from attnhub.jit import DriverError
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Contract,
    Decision,
    Estimate,
    MultipleOf,
    OneOf,
    Op,
    Range,
    Rule,
    SameAs,
    Subset,
    hookimpl,
)
from tests.core.fakes import EVERYTHING, Giving, backend, dispatcher, fixed, plugin, problem, told

_ANY = Capability(accepts={"dim": AnyValue()})


class _Raising:
    """A constraint of a plugin's own."""

    def accepts(self, value: Any) -> bool:
        raise RuntimeError("what is this?")

    nearest = accepts


class _RaisingLater(_Raising):
    """Sound for every value that its field is known to have, and for no other."""

    def accepts(self, value: Any) -> bool:
        if value not in (40, 64, 128):
            raise RuntimeError("what is this?")
        return True

    def nearest(self, value: Any) -> Any:
        return value


def ranked(decision: Decision) -> list[str]:
    return [c.name for c in decision.ranked]


def sheet(**accepts: Any) -> Capability:
    return Capability(accepts={"dim": AnyValue(), **accepts})


# -- data ---------------------------------------------------------------------------------------

WRONG_DATA = [
    pytest.param({"torch": "2.6+"}, "torch='2.6+' is no version range", id="version range"),
    pytest.param({"priority": "high"}, "priority='high' is no number", id="priority"),
    pytest.param({"capability": []}, "capability has no sheet", id="no sheet"),
    pytest.param({"capability": None}, "TypeError", id="no capability"),
    pytest.param({"capability": sheet(page_size=SameAs("nope"))}, "no field 'nope'", id="same as"),
    pytest.param({"capability": sheet(dim=Subset("cap"))}, "dim: Subset cannot", id="subset"),
    pytest.param({"capability": sheet(features=Range(1, 2))}, "features: Range cannot", id="range"),
    pytest.param({"capability": sheet(features=MultipleOf(8))}, "features: Mult", id="multiple"),
    pytest.param({"capability": sheet(dim=OneOf())}, "dim: OneOf cannot", id="no value at all"),
    pytest.param({"capability": sheet(dim=128)}, "dim: int cannot judge", id="no constraint"),
    pytest.param({"capability": sheet(dim=_Raising())}, "what is this?", id="own constraint"),
    pytest.param(
        {
            "capability": Capability(
                accepts={"dim": AnyValue()},
                rules=(Rule(when={"dim": Subset("a")}, then={"dim": OneOf(64)}, why="x"),),
            )
        },
        "dim: Subset cannot",
        id="in a rule",
    ),
    pytest.param(
        {"capability": sheet(features=Subset("caps"))},
        "features has no value 'caps'; did you mean 'cap'",
        id="a feature that there is not",
    ),
]


@pytest.mark.parametrize(("changes", "text"), WRONG_DATA)
def test_wrong_data_set_one_backend_aside(changes: dict[str, Any], text: str) -> None:
    d = dispatcher(backend("wrong", cost=fixed(0.1), **changes), EVERYTHING)
    (decision, again), reports = told(lambda: (d.decide(problem()), d.decide(problem(dim=64))))
    assert ranked(decision) == ranked(again) == ["everything"]
    (row,) = [r for r in decision.rejected if r.name == "wrong"]
    assert row.reasons[0].code is Code.IMPORT
    assert text in str(row.reasons[0])
    assert len(reports) == 1
    assert text in reports[0]


def test_a_constraint_that_fails_for_one_value_only_is_a_reason_there() -> None:
    wrong = backend("wrong", cost=fixed(0.1), capability=sheet(dim=_RaisingLater()))
    d = dispatcher(wrong, EVERYTHING)
    assert ranked(d.decide(problem(dim=64))) == ["wrong", "everything"]
    decision, reports = told(lambda: d.decide(problem(dim=65)))
    assert ranked(decision) == ["everything"]
    assert "what is this?" in reports[0]


@pytest.mark.parametrize("field", ["name", "op", "load", "torch", "probe"])
def test_what_must_be_text_is_refused_at_registration(field: str) -> None:
    d = dispatcher(EVERYTHING)
    values = {"name": "wrong", field: 5}
    with pytest.raises(PluginError, match="must be texts"):
        d.registry.register(plugin(backend(**values)), "wrong")


COSTS = [
    pytest.param(1.5, "needs an Estimate", id="a number"),
    pytest.param(None, "needs an Estimate", id="nothing"),
    pytest.param(Estimate(us="fast", source="model"), "us='fast'", id="text"),  # type: ignore[arg-type]
    pytest.param(Estimate(us=math.nan, source="model"), "us=nan", id="NaN"),
    pytest.param(Estimate(us=-1.0, source="model"), "us=-1.0", id="negative"),
]


@pytest.mark.parametrize(("cost", "text"), COSTS)
def test_a_wrong_cost_is_an_unknown_cost(cost: Any, text: str) -> None:
    d = dispatcher(backend("wrong", cost=lambda _: cost), EVERYTHING)
    decision, reports = told(lambda: d.decide(problem()))
    assert ranked(decision) == ["everything", "wrong"]
    assert text in decision.ranked[1].estimate.detail
    assert len(reports) == 1


def not_iterable(_: Any) -> Any:
    return None


def no_reasons(_: Any) -> Any:
    return ["no driver"]


@pytest.mark.parametrize("probe", ["not_iterable", "no_reasons"])
def test_a_probe_that_gives_no_reasons_says_not_here(probe: str) -> None:
    wrong = backend("wrong", cost=fixed(0.1), probe=f"{__name__}:{probe}")
    decision, reports = told(lambda: dispatcher(wrong, EVERYTHING).decide(problem("cpu")))
    assert ranked(decision) == ["everything"]
    assert "the probe of backend 'wrong' failed: TypeError" in reports[0]


# -- plans --------------------------------------------------------------------------------------


nothing = Giving(None)
runless = Giving(object())
not_callable = Giving(types.SimpleNamespace(run=5))
planless = object()
crashing = Giving(RuntimeError("no kernel"))
out_of_memory = Giving(torch.OutOfMemoryError("tried to allocate 1 TB"))
refusing = Giving(InvalidArgument("soft_cap=-1: give a number above 0"))
no_memory = Giving(DriverError("cuLibraryLoadData failed: free memory first", status=2))
gone_wrong = Giving(DriverError("a kernel before this one went wrong", status=700))
selective = types.SimpleNamespace()


def _selective(p: Any) -> Any:
    if p.dim == 40:
        raise RuntimeError("no kernel for 40")
    return types.SimpleNamespace(run=lambda: "selective")


selective.plan = _selective


def planner(name: str, **changes: Any) -> Backend:
    return backend("wrong", cost=fixed(0.1), load=f"{__name__}:{name}", **changes)


@pytest.mark.parametrize(
    ("load", "text"),
    [
        ("nothing", "gave a NoneType without run()"),
        ("runless", "gave a object without run()"),
        ("not_callable", "gave a SimpleNamespace without run()"),
        ("planless", "has no method plan(problem)"),
        ("crashing", "plan() failed: RuntimeError: no kernel"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_wrong_plan_sets_the_backend_aside(load: str, text: str) -> None:
    d = dispatcher(planner(load), EVERYTHING)
    (plan, _), reports = told(lambda: d.plan(problem("cpu")))
    assert plan.run() == "everything"
    assert len(reports) == 1
    assert text in reports[0]
    with pytest.raises(BackendUnsupported, match="wrong"):
        d.plan(problem("cpu"), backend="wrong")


_RUNS: dict[str, Any] = {
    "too_few": lambda x: None,
    "too_many": lambda x, eps, out: None,
    "by_name": lambda *, x, eps: None,
    "fits": lambda x, eps: None,
    "gathers": lambda *args: None,
    "more_by_default": lambda x, eps, stream=None: None,
    "builtin": min,
}
planners = {name: Giving(types.SimpleNamespace(run=run)) for name, run in _RUNS.items()}


def __getattr__(name: str) -> Any:
    try:
        return planners[name]
    except KeyError:
        raise AttributeError(f"this module has no attribute {name!r}") from None


def _dispatcher_of(contract: Contract, *backends: Backend) -> Dispatcher:
    class Contracted:
        @hookimpl
        def attnhub_ops(self) -> list[Op]:
            at = "tests.core.fakes:FakeProblem"
            return [Op(name="fake.op", summary="", problem=at, workloads=at, contracts=(contract,))]

        @hookimpl
        def attnhub_backends(self) -> list[Backend]:
            return [*backends]

    d = Dispatcher(Registry())
    d.registry.register(Contracted(), "contracted")
    return d


@pytest.mark.parametrize("load", ["too_few", "too_many", "by_name"])
def test_a_plan_whose_run_takes_other_arguments_sets_the_backend_aside(load: str) -> None:
    d = _dispatcher_of(Contract(run="x: Tensor[n], eps: float"), planner(load), EVERYTHING)
    (plan, _), (report,) = told(lambda: d.plan(problem("cpu")))
    assert plan.made_by == "everything"
    assert "is called as run(x, eps) by position" in report
    assert "docs/plan_contract.md" in report


@pytest.mark.parametrize("load", ["fits", "gathers", "more_by_default", "builtin"])
def test_a_plan_whose_run_takes_the_arguments_is_kept(load: str) -> None:
    d = _dispatcher_of(Contract(run="x: Tensor[n], eps: float"), planner(load), EVERYTHING)
    (plan, _), reports = told(lambda: d.plan(problem("cpu")))
    assert plan.run is _RUNS[load]
    assert not reports


def test_a_contract_that_is_no_python_is_refused_at_registration() -> None:
    with pytest.raises(PluginError, match="write the arguments as in Python"):
        _dispatcher_of(Contract(run="x: Tensor[n] eps: float"))


def test_an_op_whose_plans_hold_a_batch_needs_update() -> None:
    class Batches:
        @hookimpl
        def attnhub_ops(self) -> list[Op]:
            contract = Contract(run="x: Tensor[n]", update="Batch", when={"dim": OneOf(64)})
            module = "tests.core.fakes"
            return [
                Op(
                    name="fake.op",
                    summary="for tests",
                    problem=f"{module}:FakeProblem",
                    workloads=f"{module}:NONE",
                    contracts=(contract,),
                )
            ]

        @hookimpl
        def attnhub_backends(self) -> list[Backend]:
            return [EVERYTHING]

    d = Dispatcher(type(dispatcher().registry)())
    d.registry.register(Batches(), "batches")
    assert d.plan(problem("cpu", dim=128))[0].run() == "everything"
    with (
        pytest.warns(PluginWarning, match=r"without update\(\)"),
        pytest.raises(Exception, match="no backend"),
    ):
        d.plan(problem("cpu", dim=64))


# -- whom a failure concerns --------------------------------------------------------------------


def test_a_failure_concerns_the_facts_and_the_device_not_the_sizes() -> None:
    d = dispatcher(planner("selective"), EVERYTHING)
    with pytest.warns(PluginWarning, match="no kernel for 40"):
        assert d.plan(problem("cpu", dim=40, tokens=1))[0].run() == "everything"
    assert d.plan(problem("cpu", dim=40, tokens=4096))[0].run() == "everything"  # not asked again
    assert d.plan(problem("cpu", dim=64))[0].run() == "selective"
    decision = d.decide(problem("h100", dim=40))
    assert ranked(decision)[0] == "wrong"  # another device has to fail for itself


def test_code_that_does_not_load_concerns_every_problem() -> None:
    d = dispatcher(planner("missing"), EVERYTHING)
    with pytest.warns(PluginWarning, match="set aside"):
        d.plan(problem("cpu", dim=40))
    assert ranked(d.decide(problem("h100", dim=64))) == ["everything"]


@pytest.mark.parametrize(
    ("load", "error"),
    [
        ("out_of_memory", torch.OutOfMemoryError),
        ("refusing", InvalidArgument),
        ("no_memory", DriverError),  # as torch's own
        ("gone_wrong", DriverError),  # nothing runs on the device any more, whoever is asked
    ],
)
def test_what_is_not_the_plugins_fault_reaches_the_caller(
    load: str, error: type[Exception]
) -> None:
    d = dispatcher(planner(load), EVERYTHING)
    for _ in range(2):  # nothing is set aside
        with pytest.raises(error):
            d.plan(problem("cpu"))
    assert ranked(d.decide(problem("cpu")))[0] == "wrong"


def test_a_plugin_that_comes_back_is_heard_again() -> None:
    d = dispatcher(EVERYTHING)
    d.registry.register(plugin(planner("crashing")), "theirs")
    with pytest.warns(PluginWarning, match="no kernel"):
        d.plan(problem("cpu"))
    d.registry.unregister("theirs")
    d.registry.register(plugin(planner("selective")), "theirs")
    assert d.plan(problem("cpu"))[0].run() == "selective"


# -- hooks --------------------------------------------------------------------------------------


def test_an_observer_that_fails_silences_no_other_and_is_named() -> None:
    seen: list[str] = []

    class Observer:
        def __init__(self, name: str, *, fails: bool) -> None:
            self.name, self.fails = name, fails

        @hookimpl
        def attnhub_on_decision(self, decision: Decision) -> None:
            seen.append(self.name)
            if self.fails:
                raise RuntimeError(f"no telemetry for {decision.op}")

    class Incurious:
        @hookimpl
        def attnhub_on_decision(self) -> None:
            seen.append("incurious")

    d = dispatcher(EVERYTHING)
    d.registry.register(Observer("first", fails=False), "first")
    d.registry.register(Observer("second", fails=True), "second")
    d.registry.register(Incurious(), "incurious")
    d.registry.register(Observer("last", fails=True), "last")
    _, reports = told(lambda: d.plan(problem("cpu")))
    assert seen == ["last", "incurious", "second", "first"]
    assert [r.partition(":")[0] for r in reports] == ["plugin 'last'", "plugin 'second'"]


def test_an_op_whose_problem_does_not_load_names_its_plugin(isolated_registry: Registry) -> None:
    class Lost:
        @hookimpl
        def attnhub_ops(self) -> list[Op]:
            return [
                Op(name="lost.op", summary="", problem="lost_family:P", workloads="lost_family:w")
            ]

    isolated_registry.register(Lost(), "theirs")
    with pytest.raises(PluginError, match="plugin 'theirs': cannot load 'lost_family:P'"):
        attnhub.explain("lost.op", device="cpu")
