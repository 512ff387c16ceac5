"""Plugins that misbehave, one way each, to prove that the rest goes on.

Each factory returns an entry point for ``Registry.load_entry_point``, as discovery would find it.
Plugin and backend are named after the fault; the backend claims to be the fastest of
``norm.rmsnorm``, so that a call reaches it unless something stops it.

Example::

    with isolated() as registry:
        registry.load_entry_point(faults.import_error())    # warns once
        print(registry.plugins["import_error"].error)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Decision,
    Device,
    Efficiency,
    Estimate,
    OneOf,
    Op,
    Problem,
    Reason,
    hookimpl,
)

OP = "norm.rmsnorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What discovery needs of an entry point."""

    name: str
    load: Callable[[], Any]
    value: str = __name__
    dist: None = None


class Manifest:
    """A plugin that offers these backends and ops."""

    def __init__(self, *offered: Backend | Op) -> None:
        self._offered = offered

    @hookimpl
    def attnhub_backends(self) -> Sequence[Backend]:
        """The backends."""
        return [x for x in self._offered if isinstance(x, Backend)]

    @hookimpl
    def attnhub_ops(self) -> Sequence[Op]:
        """The ops."""
        return [x for x in self._offered if isinstance(x, Op)]


def _backend(name: str, **changes: Any) -> Backend:
    sound = Backend(
        name=name,
        op=OP,
        capability=Capability(
            accepts={
                "dtype": OneOf("float16", "bfloat16", "float32"),
                "hidden": AnyValue(),
                "contiguous": AnyValue(),
            }
        ),
        cost=Efficiency(compute=1.0, memory=1.0),
        load=f"{__name__}:sound",
    )
    return replace(sound, **changes)


def _entry(name: str, **changes: Any) -> Entry:
    return Entry(name=name, load=lambda: Manifest(_backend(name, **changes)))


# -- faults while a plugin loads ----------------------------------------------------------------


def import_error() -> Entry:
    """A manifest whose import fails."""

    def load() -> NoReturn:
        raise ImportError("libmissing.so.1: cannot open shared object file")

    return Entry(name="import_error", load=load)


def exit_at_import() -> Entry:
    """A manifest that ends the process, or tries to."""

    def load() -> NoReturn:
        raise SystemExit(3)

    return Entry(name="exit_at_import", load=load)


def slow_import(seconds: float = 0.6) -> Entry:
    """A manifest that takes its time; it works."""

    def load() -> Manifest:
        time.sleep(seconds)
        return Manifest(_backend("slow_import"))

    return Entry(name="slow_import", load=load)


def wrong_api() -> Entry:
    """A plugin written for a later interface."""

    class Later(Manifest):
        @hookimpl
        def attnhub_api(self) -> str:
            return ">=99"

    return Entry(name="wrong_api", load=lambda: Later(_backend("wrong_api")))


def misspelt_hook() -> Entry:
    """A plugin whose hook nobody would ever call."""

    class Misspelt:
        @hookimpl
        def attnhub_backend(self) -> Sequence[Backend]:
            return [_backend("misspelt_hook")]

    return Entry(name="misspelt_hook", load=Misspelt)


def duplicate_backend() -> Entry:
    """A plugin with a sound backend and one whose name is taken."""
    plugin = Manifest(_backend("duplicate_backend"), _backend("reference"))
    return Entry(name="duplicate_backend", load=lambda: plugin)


# -- faults while a backend is chosen -----------------------------------------------------------


def unknown_field() -> Entry:
    """A capability that speaks of a field the problem does not have."""
    return _entry("unknown_field", capability=Capability(accepts={"hiden": AnyValue()}))


def crash_in_probe() -> Entry:
    """A probe that raises."""
    return _entry("crash_in_probe", probe=f"{__name__}:crashing_probe")


def crash_in_cost() -> Entry:
    """A cost model that raises; the backend works."""
    return _entry("crash_in_cost", cost=_crashing_cost)


# -- faults while a backend plans and runs ------------------------------------------------------


def missing_module() -> Entry:
    """A backend whose code is not there."""
    return _entry("missing_module", load="attnhub_no_such_module:planner")


def crash_in_plan() -> Entry:
    """A planner that raises."""
    return _entry("crash_in_plan", load=f"{__name__}:crashing")


def crash_in_hook() -> Entry:
    """A sound backend beside an observer that raises."""

    class Observer(Manifest):
        @hookimpl
        def attnhub_on_decision(self, decision: Decision) -> None:
            raise RuntimeError(f"no telemetry for {decision.op}")

    return Entry(name="crash_in_hook", load=lambda: Observer(_backend("crash_in_hook")))


def wrong_numbers() -> Entry:
    """A backend that declares what it computes wrongly: only the conformance suite can tell."""
    return _entry("wrong_numbers", load=f"{__name__}:wrong")


def crashing_probe(device: Device) -> Sequence[Reason]:
    """What ``crash_in_probe`` names."""
    raise RuntimeError(f"no driver to ask about {device.name}")


def _crashing_cost(problem: Problem) -> Estimate:
    raise ZeroDivisionError(f"no bandwidth for {problem.op}")


class _Planner:
    """RMS norm in float32, with an ``error`` in its result: a planner and its plan."""

    def __init__(self, error: float = 0.0) -> None:
        self._factor = 1.0 + error

    def plan(self, problem: Problem) -> _Planner:
        """The same object: nothing depends on the problem."""
        return self

    def run(self, x: Tensor, weight: Tensor, out: Tensor, eps: float, weight_bias: float) -> None:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * self._factor
        out.copy_(wide * scale * (weight.float() + weight_bias))


class _Crashing:
    def plan(self, problem: Problem) -> NoReturn:
        """Raise."""
        raise RuntimeError(f"no kernel for {problem.op}")


sound = _Planner()
wrong = _Planner(error=0.02)
crashing = _Crashing()
