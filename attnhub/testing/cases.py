"""From a problem to calls of the public API: one adapter an op, and how to add one.

An adapter builds small real inputs for any problem of its op. Attention and the norms have theirs
in this package. Any other op may bring its own: its workloads module defines ``calls``, a mapping
from op name to ``build(problem, device, generator) -> run``, where ``run()`` makes one call of the
public function and returns the outputs. An op with neither is tested by its small workloads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from attnhub.plugin import Device, Op, Problem, Workload
from attnhub.testing.corners import Shape

#: Outputs by name; one called "lse" is compared by that column of the tolerance table.
Results = Mapping[str, Tensor]
Build = Callable[[Any, torch.device, torch.Generator], Callable[[], Any]]

#: Op -> the adapter kept in this package, as "module:attribute".
_HERE = {
    "attention": "attnhub.testing.attention_cases:attention",
    "norm.rmsnorm": "attnhub.testing.norm_cases:rmsnorm",
    "norm.fused_add_rmsnorm": "attnhub.testing.norm_cases:fused_add_rmsnorm",
    "norm.layernorm": "attnhub.testing.norm_cases:layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the public API.

    Args:
        name: tells the calls of one problem apart.
        run: the call, made while the backend under test is required.
        expect: the same for the reference; at least as precise.
        row: the row of the tolerance table; default the dtype of each output.
        grows: the outputs are sums, not averages, so that their tolerance grows with their RMS.
        parts: pieces of the batch on their own, as (name, their rows of the outputs, call); where
            a problem is ``deterministic`` they must come out bit for bit as in the whole.
    """

    name: str
    run: Callable[[], Results]
    expect: Callable[[], Results]
    row: torch.dtype | None = None
    grows: bool = False
    parts: Sequence[tuple[str, slice, Callable[[], Results]]] = ()


class Adapter(Shape, Protocol):
    """A search space whose problems can be called."""

    @property
    def callable(self) -> bool:
        """False for an op of which nothing but its workloads is known."""
        ...

    def calls(self, problem: Any, device: torch.device) -> Iterator[Call]:
        """The calls that test this problem, inputs made; the same ones for equal problems."""
        ...


def _no_conflict(_: Mapping[str, Any]) -> set[str]:
    return set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The adapter of an op whose calls one function builds.

    ``base`` holds preferred facts; ``conflicts`` names fields whose values no call can have
    together. What the problem class itself refuses need not be named.
    """

    build: Build | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    conflicts: Callable[[Mapping[str, Any]], set[str]] = _no_conflict

    @property
    def callable(self) -> bool:
        """Whether there is a function that builds calls."""
        return self.build is not None

    def clashes(self, facts: Mapping[str, Any], device: Device) -> set[str]:
        """What ``conflicts`` says."""
        return self.conflicts(facts)

    def problem(self, cls: type[Problem], device: Device, facts: Mapping[str, Any]) -> Problem:
        """The problem with these facts."""
        return cls.of(device, **facts)

    def calls(self, problem: Any, device: torch.device) -> Iterator[Call]:
        """One call, on equal inputs for both backends."""
        build = self.build
        if build is None:
            return

        def run() -> Results:
            return named(build(problem, device, torch.Generator().manual_seed(seed_of(problem)))())

        yield Call(name="call", run=run, expect=run)


def adapter(op: Op) -> Adapter:
    """The adapter of an op: the one here, else one made of its ``calls``, else one without."""
    if op.name in _HERE:
        module, _, attribute = _HERE[op.name].partition(":")
        found: Adapter = getattr(importlib.import_module(module), attribute)
        return found
    module = op.workloads.partition(":")[0]
    return Calls(build=getattr(importlib.import_module(module), "calls", {}).get(op.name))


def workload_calls(op: Op, device: torch.device) -> Iterator[Call]:
    """The small workloads of an op, on equal inputs for both backends."""
    module, _, attribute = op.workloads.partition(":")
    workloads: Sequence[Workload] = getattr(importlib.import_module(module), attribute)
    for workload in workloads:
        if "small" in workload.tags:
            yield _workload_call(workload, device)


def _workload_call(workload: Workload, device: torch.device) -> Call:
    def run() -> Results:
        return named(workload.make(device, torch.Generator().manual_seed(0))())

    return Call(name=workload.name, run=run, expect=run)


def seed_of(problem: Problem) -> int:
    """A seed that is the same for this problem in every process."""
    return int(problem.signature()[:8], 16)


def named(outputs: Any) -> Results:
    """Whatever a call returned, as outputs by name."""
    if isinstance(outputs, Tensor):
        return {"out": outputs}
    if isinstance(outputs, Mapping):
        return outputs
    return {f"out{i}": x for i, x in enumerate(outputs) if isinstance(x, Tensor)}
