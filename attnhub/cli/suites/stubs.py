"""Backends whose kernels do nothing, so that what is left is the cost of AttnHub itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from attnhub.core import dispatch
from attnhub.core.registry import Registry
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    MultipleOf,
    OneOf,
    Problem,
    Range,
    Rule,
    Subset,
    hookimpl,
)

_FREE = Efficiency(compute=1.0, memory=1.0)


class _Plan:
    def update(self, batch: Any) -> None:
        """Take over nothing."""

    def run(self, *tensors: Any) -> None:
        """Launch nothing."""


class _Planner:
    def plan(self, problem: Problem) -> _Plan:
        return _Plan()


planner = _Planner()


def _backend(op: str, capability: Capability, name: str = "stub") -> Backend:
    load = f"{__name__}:planner"
    return Backend(name=name, op=op, capability=capability, cost=_FREE, load=load)


class Everything:
    """A plugin that serves these ops in full, and cheaper than anything real."""

    def __init__(self, *ops: str) -> None:
        self._ops = ops

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        """One stub for each op."""
        return [_backend(op, Capability(complete=True)) for op in self._ops]


class Nine:
    """Nine attention backends as real ones describe themselves: twelve with the built-in three."""

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        """Backends that differ in architecture and page size; some fit and some do not."""
        archs = (Range(80, None), Range(90, 90), Range(100, None))
        pages = (OneOf(None, 16), MultipleOf(16), AnyValue())
        sheets = [_sheet(sm, page) for sm in archs for page in pages]
        return [_backend("attention", sheet, f"stub_{i}") for i, sheet in enumerate(sheets)]


def _sheet(sm: Any, page: Any) -> Capability:
    halves = OneOf("float16", "bfloat16")
    return Capability(
        devices=("cuda",),
        sm=sm,
        accepts={
            "kv": OneOf("ragged", "paged"),
            "num_qo_heads": AnyValue(),
            "num_kv_heads": AnyValue(),
            "head_dim_qk": OneOf(64, 128, 256),
            "head_dim_vo": OneOf(64, 128, 256),
            "q_dtype": halves,
            "kv_dtype": halves,
            "out_dtype": halves,
            "layout": OneOf("NHD", "HND"),
            "page_size": page,
            "features": Subset("causal", "window", "soft_cap"),
            "metadata": OneOf("host", "device"),
            "graph": AnyValue(),
        },
        rules=(
            Rule(
                when={"kv": OneOf("paged")},
                then={"page_size": Range(1, 256)},
                why="a page must fit a tile",
            ),
        ),
    )


@contextlib.contextmanager
def registry(*plugins: Any) -> Iterator[Registry]:
    """AttnHub's own ops and backends plus ``plugins``, as the shared registry of the block."""
    with dispatch.isolated() as found:
        for plugin in plugins:
            found.register(plugin, type(plugin).__name__.lower())
        yield found
