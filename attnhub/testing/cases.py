"""From a problem to calls of the public API: one adapter an op.

An adapter builds small real inputs for any problem of its op. Attention and the norms have theirs
in this package. Any other op brings its own: its workloads module defines ``calls``, a mapping from
op name to :class:`attnhub.plugin.Calls` or to the ``build`` of one. An op with neither is tested by
its small workloads.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attnhub.plugin import Call, Calls, Device, Op, Problem, Workload
from attnhub.testing.corners import Shape
from attnhub.testing.generators import seeded

#: Outputs by name.
Results = Mapping[str, Tensor]

#: Op -> the adapter kept in this package, as "module:attribute".
_HERE = {
    "attention": "attnhub.testing.attention_cases:attention",
    "norm.rmsnorm": "attnhub.testing.norm_cases:rmsnorm",
    "norm.fused_add_rmsnorm": "attnhub.testing.norm_cases:fused_add_rmsnorm",
    "norm.layernorm": "attnhub.testing.norm_cases:layernorm",
}


class Adapter(Shape, Protocol):
    """A search space whose problems can be called."""

    @property
    def callable(self) -> bool:
        """False for an op of which nothing but its workloads is known."""
        ...

    def calls(self, problem: Any, device: torch.device) -> Iterator[Call]:
        """The calls that test this problem, inputs made; the same ones for equal problems."""
        ...


@dataclass(frozen=True, slots=True)
class CallsAdapter:
    """The adapter that an op's :class:`Calls` stand for; None for an op that has none."""

    given: Calls | None

    @property
    def callable(self) -> bool:
        """Whether there is a function that builds calls."""
        return self.given is not None

    @property
    def base(self) -> Mapping[str, Any]:
        """The facts to start from."""
        return self.given.base if self.given else {}

    def clashes(self, facts: Mapping[str, Any], device: Device) -> set[str]:
        """What the op says of them."""
        clashes = self.given.clashes if self.given else None
        return clashes(facts, device) if clashes else set()

    def problem(self, cls: type[Problem], device: Device, facts: Mapping[str, Any]) -> Problem:
        """The problem with these facts."""
        return cls.of(device, **facts)

    def calls(self, problem: Any, device: torch.device) -> Iterator[Call]:
        """The calls that were built, on equal inputs for both backends."""
        if self.given is None:
            return
        given = self.given

        def build() -> Any:
            return given.build(problem, device, seeded(seed_of(problem)))

        def run() -> Any:
            return build()()

        built = build()
        if isinstance(built, Iterable):
            yield from built
        else:
            yield Call(name="call", run=run)


def adapter(op: Op) -> Adapter:
    """The adapter of an op: the one here, else that of its ``calls``, else one without."""
    if op.name in _HERE:
        module, _, attribute = _HERE[op.name].partition(":")
        found: Adapter | Calls = getattr(importlib.import_module(module), attribute)
        return CallsAdapter(found) if isinstance(found, Calls) else found
    module = op.workloads.partition(":")[0]
    given = getattr(importlib.import_module(module), "calls", {}).get(op.name)
    return CallsAdapter(given if given is None or isinstance(given, Calls) else Calls(build=given))


def workloads(op: Op, *, tag: str) -> list[Workload]:
    """Those of an op's workloads that have this tag."""
    module, _, attribute = op.workloads.partition(":")
    found: Sequence[Workload] = getattr(importlib.import_module(module), attribute)
    return [workload for workload in found if tag in workload.tags]


def workload_calls(op: Op, device: torch.device) -> Iterator[Call]:
    """The small workloads of an op, on equal inputs for both backends."""
    for workload in workloads(op, tag="small"):
        yield _workload_call(workload, device)


def _workload_call(workload: Workload, device: torch.device) -> Call:
    def run() -> Any:
        return workload.make(device, seeded(0))()

    return Call(name=workload.name, run=run)


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
