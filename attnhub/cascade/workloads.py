"""Inputs of the merges: the sizes of real models for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnhub.cascade import api
from attnhub.cascade.problem import (
    MergeStateInPlaceProblem,
    MergeStateProblem,
    MergeStatesProblem,
)
from attnhub.core.calls import Call, Calls, Run, spaced
from attnhub.core.problem import Work
from attnhub.core.workload import Workload

#: (tokens, states, heads, dim, tag); 111 is no multiple of a vector, 64 states a split-KV decode.
#: The largest are beyond every L2.
_SIZES = (
    (7, 2, 4, 64, "small"),
    (5, 3, 3, 111, "small"),
    (1, 2, 32, 128, "h200"),
    (128, 2, 32, 128, "h200"),
    (8192, 2, 32, 128, "h200"),
    (16384, 2, 32, 128, "h200"),
    (65536, 2, 32, 128, "h200"),
    (16, 64, 32, 128, "h200"),
    (2048, 64, 32, 128, "h200"),
)

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


_TOKENS = 9
_Problem = MergeStateProblem | MergeStateInPlaceProblem | MergeStatesProblem
_State = tuple[Tensor, Tensor]


def _hard_states(
    problem: _Problem, count: int, tokens: int, device: torch.device, generator: torch.Generator
) -> _State:
    """``o [tokens, count, heads, dim]`` and ``lse [tokens, count, heads]``.

    Token 0 saw nothing in its first state, token 1 in its last, token 2 in any; what those states
    hold is NaN. The LSEs of token 3 are far from 0, those of token 4 far from each other.
    """
    shape = (tokens, count, problem.num_heads)
    o = torch.randn(*shape, problem.head_dim, generator=generator)
    lse = torch.randn(shape, generator=generator)
    lse[0:1, :1], lse[1:2, -1:], lse[2:3] = -math.inf, -math.inf, -math.inf
    lse[3:4] -= 60000
    lse[4:5, :1] += 90
    o[lse == -math.inf] = math.nan
    return _as_asked(problem, o.to(device, getattr(torch, problem.dtype)), lse.to(device))


def _as_asked(problem: _Problem, *state: Tensor) -> _State:
    """A copy of a state, with or without gaps between rows."""
    o, lse = (x.contiguous().clone() if problem.contiguous else spaced(x) for x in state)
    return o, lse


def _two(problem: _Problem, *args: Any) -> tuple[_State, _State]:
    o, lse = _hard_states(problem, 2, *args)
    return _as_asked(problem, o[:, 0], lse[:, 0]), _as_asked(problem, o[:, 1], lse[:, 1])


def _nowhere(problem: _Problem, like: _State) -> _State:
    return _as_asked(problem, *(torch.full_like(x, math.nan) for x in like))


def _state(o: Tensor, lse: Tensor) -> dict[str, Tensor]:
    return {"out": o, "lse": lse}


def _merge_state_calls(
    problem: MergeStateProblem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    """Into new memory, and into that of each of the two states, by other tensors."""
    a, b = _two(problem, _TOKENS, device, generator)
    none = _two(problem, 0, device, generator)

    def into(which: int) -> Run:
        def run() -> dict[str, Tensor]:
            states = [_as_asked(problem, *a), _as_asked(problem, *b), _nowhere(problem, a)]
            o, lse = states[which]
            return _state(*api.merge_state(*states[0], *states[1], out=(o[:], lse[:])))

        return run

    yield Call(name="two states", run=into(2))
    yield Call(name="into the first", run=into(0))
    yield Call(name="into the second", run=into(1))
    yield Call(name="no tokens", run=lambda: _state(*api.merge_state(*none[0], *none[1])))


def _in_place_calls(
    problem: MergeStateInPlaceProblem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    """Where a mask is given, it leaves out some of the states that saw nothing, and some others."""
    for tokens in (_TOKENS, 0):
        a, b = _two(problem, tokens, device, generator)
        mask = (torch.arange(tokens) % 4 < 2).to(device) if problem.mask else None

        def run(a: _State = a, b: _State = b, mask: Tensor | None = mask) -> dict[str, Tensor]:
            state = _as_asked(problem, *a)
            api.merge_state_(*state, *b, mask=mask)
            return _state(*state)

        yield Call(name=f"{tokens} tokens", run=run)


def _merge_states_calls(
    problem: MergeStatesProblem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    for tokens in (_TOKENS, 0):
        o, lse = _hard_states(problem, problem.num_states, tokens, device, generator)
        like = o.new_empty(tokens, *o.shape[2:]), lse.new_empty(tokens, lse.shape[2])

        def run(o: Tensor = o, lse: Tensor = lse, like: _State = like) -> dict[str, Tensor]:
            return _state(*api.merge_states(o, lse, out=_nowhere(problem, like)))

        yield Call(name=f"{tokens} tokens", run=run)


_BASE = {"dtype": "float32", "num_heads": 3, "head_dim": 64}
calls = {
    "cascade.merge_state": Calls(build=_merge_state_calls, base=_BASE),
    "cascade.merge_state_in_place": Calls(build=_in_place_calls, base=_BASE),
    "cascade.merge_states": Calls(build=_merge_states_calls, base={**_BASE, "num_states": 3}),
}
