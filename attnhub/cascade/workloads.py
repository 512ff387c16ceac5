"""Inputs of the merges: small ones for tests, the sizes of real models for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnhub.cascade import api
from attnhub.core.problem import Work
from attnhub.core.workload import Workload

#: (tokens, states, heads, dim, tag); 111 is no multiple of a vector, 64 states a split-KV decode.
_SIZES = (
    (7, 2, 4, 64, "small"),
    (5, 3, 3, 111, "small"),
    (128, 2, 32, 128, "h200"),
    (8192, 2, 32, 128, "h200"),
    (16, 64, 32, 128, "h200"),
)

Run = Callable[[], Any]
Make = Callable[[torch.device, torch.Generator], Run]


def _states(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random states; about one in eight saw no key."""
    o = torch.randn(shape, generator=generator, device=generator.device)
    lse = torch.randn(shape[:-1], generator=generator, device=generator.device)
    empty = torch.rand(shape[:-1], generator=generator, device=generator.device) < 1 / 8
    return o.to(device, torch.bfloat16), lse.masked_fill(empty, -torch.inf).to(device)


def _merge_state(tokens: int, _: int, heads: int, dim: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        a, b = (_states((tokens, heads, dim), device, generator) for _ in "ab")
        out = torch.empty_like(a[0]), torch.empty_like(a[1])
        return lambda: api.merge_state(*a, *b, out=out)

    return make


def _merge_state_in_place(tokens: int, _: int, heads: int, dim: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        state, other = (_states((tokens, heads, dim), device, generator) for _ in "ab")
        drawn = torch.rand(tokens, generator=generator, device=generator.device)
        mask = (drawn < 0.5).to(device)

        def run() -> tuple[Tensor, Tensor]:
            api.merge_state_(*state, *other, mask=mask)
            return state

        return run

    return make


def _merge_states(tokens: int, states: int, heads: int, dim: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        o, lse = _states((tokens, states, heads, dim), device, generator)
        out = o.new_empty(tokens, heads, dim), lse.new_empty(tokens, heads)
        return lambda: api.merge_states(o, lse, out=out)

    return make


def _cases(make: Callable[..., Make], states: int | None = None) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{tokens}x{n}x{heads}x{dim}-bfloat16",
            make=make(tokens, n, heads, dim),
            work=Work(
                flops=3.0 * (n + 1) * tokens * heads * dim,
                bytes=(n + 1.0) * tokens * heads * (2 * dim + 4),
            ),
            tags=frozenset({tag}),
            facts={"tokens": tokens, "states": n, "heads": heads, "dim": dim},
        )
        for tokens, n, heads, dim, tag in _SIZES
        if states in (None, n)
    )


merge_state = _cases(_merge_state, states=2)
merge_state_in_place = _cases(_merge_state_in_place, states=2)
merge_states = _cases(_merge_states)
