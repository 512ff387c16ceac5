"""What the merges of attention states share.

A state is ``o [tokens, heads, dim]`` and ``lse [tokens, heads]``, of any strides but for the last.
A kernel takes the strides of ``tokens`` and ``heads`` as outer and inner; where everything is
contiguous there is one outer index, and all rows are inner.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.settings import RowSettings, streamed
from attnhub_triton_misc.tuned import choose


def tile_of(problem: Any) -> RowSettings:
    """A tile of rows of a state, each of ``head_dim`` elements."""
    tokens = problem.extent.tokens
    rows = None if tokens is None else tokens * problem.num_heads
    return choose(problem, streamed(rows, problem.head_dim))


def state(o: Tensor, lse: Tensor, *, flat: bool) -> tuple[Any, ...]:
    """A state as kernels take it: pointer, outer and inner stride; pointer and outer stride."""
    if flat:
        return o, 0, o.shape[-1], lse, 0
    return o, o.stride(0), o.stride(1), lse, lse.stride(0)


def extent(o: Tensor, *, flat: bool) -> tuple[int, int]:
    """How many outer and inner indices there are."""
    tokens, heads, _ = o.shape
    return (1, tokens * heads) if flat else (tokens, heads)


@triton.jit
def rows_of_program(inner, ROWS: tl.constexpr):
    """The outer index of a program and its inner ones, all int64; programs go along inner first."""
    blocks = tl.cdiv(inner, ROWS)
    program = tl.program_id(0)
    first = (program % blocks).to(tl.int64) * ROWS
    return (program // blocks).to(tl.int64), first + tl.arange(0, ROWS)


@triton.jit
def finite_base(largest):
    """What LSEs are taken relative to: the largest, or 0 where no state has seen a key.

    Relative to the largest, weights are exact at any magnitude; -inf less -inf would be NaN.
    """
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def merge_weights(lse_a, lse_b):
    """The weights of two states, whose sum is 1 or, where both are empty, 0; and the merged LSE."""
    base = finite_base(tl.maximum(lse_a, lse_b))
    a = tl.exp(lse_a - base)
    b = tl.exp(lse_b - base)
    total = a + b
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    return a * inverse, b * inverse, base + tl.log(total)


@triton.jit
def counted(o, lse):
    """``o``, and 0 where the state is empty: whatever it holds, since 0 * NaN is NaN."""
    return tl.where(lse == float("-inf"), 0.0, o)
