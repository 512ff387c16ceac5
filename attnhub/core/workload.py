"""Workload: a named input of an op, shared by tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnhub.core.problem import Work

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One case of an op.

    Args:
        name: short and unique within the op: ``"4096x4096-bfloat16"``.
        make: builds the call, ``make(device, generator) -> callable without arguments``. Tensors
            are made once, here; each call of the result is one timed run and returns its output.
        work: the least FLOPs and bytes of one run.
        tags: ``"small"`` ones run in tests on a CPU; ``"h200"`` are those speed is judged by.
        facts: what the case is made of, for tables.
    """

    name: str
    make: Callable[[torch.device, torch.Generator], Callable[[], Any]]
    work: Work
    tags: frozenset[str] = frozenset({"small"})
    facts: Mapping[str, Any] = field(default_factory=dict)
