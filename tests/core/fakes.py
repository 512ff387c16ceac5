"""A fake op and backends for tests of the dispatcher."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnhub.core.dispatch import Dispatcher
from attnhub.core.registry import Registry
from attnhub.errors import PluginWarning
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    Estimate,
    MultipleOf,
    OneOf,
    Op,
    Problem,
    Range,
    Work,
    fact,
    hookimpl,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeProblem(Problem):
    """A problem with one required fact and two features."""

    op = "fake.op"
    sizes = ("batch", "tokens")

    dim: int = fact(domain=(40, 64, 128))
    page_size: int | None = fact(domain=(1, 16), default=None)
    features: frozenset[str] = fact(domain=(frozenset({"cap"}),), default=frozenset())

    def work(self) -> Work:
        return Work(flops=1e9 * (self.extent.tokens or 1), bytes=1e9)


def fixed(us: float | None) -> Any:
    """A cost model that always says the same."""
    return lambda problem: Estimate(us=us, source="model")


class Planner:
    """A planner whose plans say who made them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, problem: Problem) -> Any:
        return types.SimpleNamespace(run=lambda *args: self.name, made_by=self.name)


class Giving:
    """A planner that gives what it is told to, or raises it."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def plan(self, _: Any) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


fast = Planner("fast")
slow = Planner("slow")
everything = Planner("everything")


def backend(name: str, **changes: Any) -> Backend:
    """A backend of the fake op; by default it takes every dim and nothing else."""
    values: dict[str, Any] = {
        "op": "fake.op",
        "capability": Capability(accepts={"dim": AnyValue()}),
        "cost": fixed(10.0),
        "load": "tests.core.fakes:everything",
    }
    return Backend(name=name, **{**values, **changes})


FAST = backend(
    "fast",
    capability=Capability(
        devices=("cuda",),
        sm=Range(90, 90),
        accepts={"dim": OneOf(64, 128), "page_size": MultipleOf(16)},
    ),
    cost=fixed(1.0),
    load="tests.core.fakes:fast",
)
SLOW = backend(
    "slow",
    capability=Capability(
        devices=("cuda",), accepts={"dim": Range(1, 256), "page_size": AnyValue()}
    ),
    cost=fixed(100.0),
    load="tests.core.fakes:slow",
)
EVERYTHING = backend(
    "everything",
    capability=Capability(complete=True),
    cost=Efficiency(compute=0.01, memory=0.01, overhead_us=1000),
    priority=-100,
)


def plugin(*backends: Backend, ops: bool = False) -> Any:
    """A plugin object offering these backends (and the fake op)."""

    class _Plugin:
        @hookimpl
        def attnhub_backends(self) -> list[Backend]:
            return list(backends)

        @hookimpl
        def attnhub_ops(self) -> list[Op]:
            op = Op(
                name="fake.op",
                summary="for tests",
                problem="tests.core.fakes:FakeProblem",
                workloads="tests.core.fakes:NONE",
            )
            return [op] if ops else []

    return _Plugin()


def dispatcher(*backends: Backend) -> Dispatcher:
    """A dispatcher over a registry with the fake op and these backends."""
    registry = Registry()
    registry.register(plugin(*backends, ops=True), "fakes")
    return Dispatcher(registry)


def problem(device: str = "h100", **facts: Any) -> FakeProblem:
    """A problem on a device by name."""
    return FakeProblem.of(device, **{"dim": 128, **facts})


def told(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of ``action``, and what plugins were reported for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    return result, [str(w.message) for w in caught if w.category is PluginWarning]
