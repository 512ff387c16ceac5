"""The merge of any number of attention states."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import load_wide, store_rounded
from attnhub_triton_misc.settings import merged
from attnhub_triton_misc.states import counted, finite_base, rows_of_program
from attnhub_triton_misc.tuned import choose


@triton.jit
def _merge_states(
    o_ptr, o_token, o_state, o_head,
    lse_ptr, lse_token, lse_state,
    out_ptr, out_token, out_head,
    out_lse_ptr, out_lse_token,
    states, heads, dim,
    STATES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = sum(o * exp(lse)) / exp(out_lse)``, ``exp(out_lse) = sum(exp(lse))``, over states."""
    overlap(PDL)
    token, head = rows_of_program(heads, ROWS)
    live = head < heads
    lse_row = lse_ptr + token * lse_token + head[None, :]
    o_row = o_ptr + token * o_token + (head * o_head)[None, :, None]
    out_row = out_ptr + token * out_token + (head * out_head)[:, None]
    for start in range(0, dim, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < dim
        out, lse = _merge(
            o_row + column[None, None, :], o_state,
            lse_row, lse_state,
            live, inside, states,
            STATES, ROWS, BLOCK,
        )  # fmt: skip
        store_rounded(out_row + column[None, :], out, live[:, None] & inside[None, :])
        tl.store(out_lse_ptr + token * out_lse_token + head, lse, mask=live)


@triton.jit
def _merge(
    o, o_state,
    lse, lse_state,
    live, inside, states,
    STATES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``[ROWS, BLOCK]`` of the merged output, and ``[ROWS]`` of its LSE.

    States pass by in groups of STATES. Each place in a group follows those that it meets by itself,
    relative to the largest LSE so far, and in the end these are put together: so a step waits for
    nothing but its loads.
    """
    largest = tl.full([STATES, ROWS], float("-inf"), tl.float32)
    total = tl.zeros([STATES, ROWS], tl.float32)
    sums = tl.zeros([STATES, ROWS, BLOCK], tl.float32)
    for first in range(0, states, STATES):
        state = first + tl.arange(0, STATES).to(tl.int64)
        there = (state < states)[:, None] & live[None, :]
        part = tl.load(lse + (state * lse_state)[:, None], mask=there, other=float("-inf"))
        mask = there[:, :, None] & inside[None, None, :]
        values = counted(load_wide(o + (state * o_state)[:, None, None], mask), part[:, :, None])
        larger = tl.maximum(largest, part)
        base = finite_base(larger)
        kept, weight = tl.exp(largest - base), tl.exp(part - base)
        sums = sums * kept[:, :, None] + values * weight[:, :, None]
        total = total * kept + weight
        largest = larger
    base = finite_base(tl.max(largest, axis=0))
    weight = tl.exp(largest - base[None, :])
    total = tl.sum(total * weight, axis=0)
    out = tl.sum(sums * weight[:, :, None], axis=0) / tl.where(total == 0.0, 1.0, total)[:, None]
    return out, base + tl.log(total)


class _Plan:
    def __init__(self, problem: Any) -> None:
        tokens, heads = problem.extent.tokens, problem.num_heads
        rows = None if tokens is None else tokens * heads
        tile = merged(problem.num_states, heads, problem.head_dim, rows)
        self._tile = choose(problem, tile)

    def run(self, o: Tensor, lse: Tensor, out: Tensor, out_lse: Tensor) -> None:
        (tokens, states, heads, dim), tile = o.shape, self._tile
        launch(
            _merge_states,
            (tokens * cdiv(heads, tile.rows),),
            o.device,
            o, o.stride(0), o.stride(1), o.stride(2),
            lse, lse.stride(0), lse.stride(1),
            out, out.stride(0), out.stride(1),
            out_lse, out_lse.stride(0),
            states, heads, dim,
            STATES=tile.states, ROWS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps,
        )  # fmt: skip


class _MergeStates:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


merge_states = _MergeStates()
