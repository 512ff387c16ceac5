"""Backends of ``norm.rmsnorm`` whose output says who ran, for tests of who is chosen and when."""

from __future__ import annotations

import types
from typing import Any

import torch

from attnhub.core.registry import Registry
from attnhub.plugin import AnyValue, Backend, Capability, Device, Estimate, Problem, Reason
from tests.core.fakes import plugin

OP = "norm.rmsnorm"

#: Whether torch was tracing, at each question to :func:`probe`.
probed: list[bool] = []


class Constant:
    """A planner whose plans fill the output with one number."""

    def __init__(self, value: float) -> None:
        self._value = value

    def plan(self, problem: Problem) -> Any:
        return types.SimpleNamespace(run=lambda x, weight, out, *rest: out.fill_(self._value))


ones = Constant(1.0)
twos = Constant(2.0)


class Exhausted:
    """A planner that runs out of memory, as a sweep over launch settings may."""

    def plan(self, problem: Problem) -> Any:
        raise MemoryError("workspace of 1 TB")


exhausted = Exhausted()


def probe(device: Device) -> list[Reason]:
    """Accept, and note when it was asked."""
    probed.append(torch.compiler.is_compiling())
    return []


def norm_backend(name: str, us: float, load: str, **changes: Any) -> Backend:
    """A backend of the norm that takes every row and claims to need ``us`` microseconds."""
    return Backend(
        name=name,
        op=OP,
        capability=Capability(accepts={"dtype": AnyValue(), "hidden": AnyValue()}),
        cost=lambda problem: Estimate(us=us, source="model"),
        load=f"tests.field_reports.stubs:{load}",
        **changes,
    )


def register_ones_and_twos(registry: Registry, **changes: Any) -> None:
    """``ones`` is the fastest of all, ``twos`` the next."""
    registry.register(
        plugin(
            norm_backend("ones", 0.1, "ones", **changes),
            norm_backend("twos", 0.2, "twos", **changes),
        ),
        "constants",
    )
