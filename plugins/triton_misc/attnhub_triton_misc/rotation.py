"""Turning heads pair by pair: what the kernels of rotary embedding share.

Cosines and sines of a token are those of all its heads, so a program has them once and then goes
through blocks of heads. Where tokens are few, several programs share the blocks of each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import launch
from attnhub_triton_misc.settings import heads_of_token
from attnhub_triton_misc.tuned import choose


class Heads(NamedTuple):
    """``[tokens, heads, dim]``: where it lies, how many heads a token has, and strides."""

    pointer: Any
    heads: int
    token_stride: int
    head_stride: int

    @classmethod
    def of(cls, x: Tensor) -> Heads:
        """A tensor as a kernel takes it."""
        token_stride, head_stride, _ = x.stride()
        return cls(x, x.shape[1], token_stride, head_stride)


class Rotation:
    """How queries and keys of a problem are turned, by a kernel that knows the angles."""

    def __init__(self, problem: Any) -> None:
        counts = problem.num_qo_heads, problem.num_kv_heads
        tile = choose(problem, heads_of_token(counts, problem.head_dim, problem.extent.tokens))
        self._programs = tile.programs
        self._new = {
            "HALF": problem.rotary_dim // 2,
            "TAIL": problem.head_dim - problem.rotary_dim,
            "INTERLEAVED": problem.interleaved,
            "HEADS": tile.heads,
            "num_warps": tile.warps,
        }
        self._in_place = {**self._new, "TAIL": 0}

    def run(
        self, kernel: Any, q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, *angles: Any
    ) -> None:
        """Launch ``kernel``, a program for each token, or several."""
        of_q, of_k = Heads.of(q), Heads.of(k)
        in_place = q_out is q and k_out is k
        launch(
            kernel,
            (q.shape[0], self._programs),
            q.device,
            of_q, of_q if q_out is q else Heads.of(q_out),
            of_k, of_k if k_out is k else Heads.of(k_out),
            *angles,
            **(self._in_place if in_place else self._new),
        )  # fmt: skip


@triton.jit
def turn_both(
    q, q_out, k, k_out, token, cos, sin,
    HALF: tl.constexpr, TAIL: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Turn this program's share of a token's heads: every ``num_programs(1)``-th block of them.

    ``cos`` and ``sin`` are float32 ``[1, pairs]``. ``TAIL`` elements behind the turned ones are
    copied.
    """
    q_blocks = tl.cdiv(q.heads, HEADS)
    blocks = q_blocks + tl.cdiv(k.heads, HEADS)
    for block in range(tl.program_id(1), blocks, tl.num_programs(1)):
        if block < q_blocks:
            _turn(q, q_out, token, block, cos, sin, HALF, TAIL, INTERLEAVED, HEADS)
        else:
            _turn(k, k_out, token, block - q_blocks, cos, sin, HALF, TAIL, INTERLEAVED, HEADS)


@triton.jit
def _turn(
    x, out, token, block, cos, sin,
    HALF: tl.constexpr, TAIL: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    head = block * HEADS + tl.arange(0, HEADS)[:, None]
    live = head < x.heads
    source, target = head_rows(x, token, head), head_rows(out, token, head)
    a, b = load_pairs(source, live, HALF, INTERLEAVED)
    dtype = out.pointer.dtype.element_ty
    a, b = (a * cos - b * sin).to(dtype), (b * cos + a * sin).to(dtype)
    store_pairs(target, live, a, b, HALF, INTERLEAVED)
    if TAIL > 0:
        column = tl.arange(0, triton.next_power_of_2(TAIL))[None, :]
        mask = live & (column < TAIL)
        rest = tl.load(source + 2 * HALF + column, mask=mask, other=0.0)
        tl.store(target + 2 * HALF + column, rest, mask=mask)


@triton.jit
def load_angles(cache, cache_row, position, HALF: tl.constexpr):
    """Cosines and sines ``[1, pairs]`` in row ``position`` of a table."""
    pair = tl.arange(0, triton.next_power_of_2(HALF))[None, :]
    row = cache + position.to(tl.int64) * cache_row
    cos = tl.load(row + pair, mask=pair < HALF, other=1.0)
    sin = tl.load(row + HALF + pair, mask=pair < HALF, other=0.0)
    return cos, sin


@triton.jit
def head_rows(x, token, head):
    """Where heads of a token begin; ``token`` is int64."""
    return x.pointer + token * x.token_stride + head.to(tl.int64) * x.head_stride


@triton.jit
def load_pairs(row, live, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Both elements of the pairs of heads at ``row``, float32 ``[heads, pairs]`` each."""
    PAIRS: tl.constexpr = triton.next_power_of_2(HALF)
    if INTERLEAVED:
        column = tl.arange(0, 2 * PAIRS)[None, :]
        x = tl.load(row + column, mask=live & (column < 2 * HALF), other=0.0)
        a, b = tl.split(tl.reshape(x, [row.shape[0], PAIRS, 2]))
    else:
        pair = tl.arange(0, PAIRS)[None, :]
        mask = live & (pair < HALF)
        a = tl.load(row + pair, mask=mask, other=0.0)
        b = tl.load(row + HALF + pair, mask=mask, other=0.0)
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def store_pairs(row, live, a, b, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The inverse of :func:`load_pairs`, of values in the dtype that is stored."""
    PAIRS: tl.constexpr = triton.next_power_of_2(HALF)
    if INTERLEAVED:
        column = tl.arange(0, 2 * PAIRS)[None, :]
        both = tl.reshape(tl.join(a, b), [row.shape[0], 2 * PAIRS])
        tl.store(row + column, both, mask=live & (column < 2 * HALF))
    else:
        pair = tl.arange(0, PAIRS)[None, :]
        mask = live & (pair < HALF)
        tl.store(row + pair, a, mask=mask)
        tl.store(row + HALF + pair, b, mask=mask)
