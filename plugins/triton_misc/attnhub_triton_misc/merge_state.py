"""The merge of two attention states."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import load_wide, store_rounded
from attnhub_triton_misc.states import (
    counted,
    extent,
    merge_weights,
    rows_of_program,
    state,
    tile_of,
)


@triton.jit
def _merge_state(
    a_ptr, a_outer, a_inner, lse_a_ptr, lse_a_outer,
    b_ptr, b_outer, b_inner, lse_b_ptr, lse_b_outer,
    out_ptr, out_outer, out_inner, lse_ptr, lse_outer,
    inner, dim,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = (a * exp(lse_a) + b * exp(lse_b)) / exp(lse)``, ``exp(lse)`` the sum of these."""
    overlap(PDL)
    outer, row = rows_of_program(inner, ROWS)
    live = row < inner
    lse_a = tl.load(lse_a_ptr + outer * lse_a_outer + row, mask=live, other=0.0)
    lse_b = tl.load(lse_b_ptr + outer * lse_b_outer + row, mask=live, other=0.0)
    weight_a, weight_b, lse = merge_weights(lse_a, lse_b)
    a_row = a_ptr + outer * a_outer + (row * a_inner)[:, None]
    b_row = b_ptr + outer * b_outer + (row * b_inner)[:, None]
    out_row = out_ptr + outer * out_outer + (row * out_inner)[:, None]
    for start in range(0, dim, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = live[:, None] & (column < dim)
        a = counted(load_wide(a_row + column, mask), lse_a[:, None])
        b = counted(load_wide(b_row + column, mask), lse_b[:, None])
        store_rounded(out_row + column, a * weight_a[:, None] + b * weight_b[:, None], mask)
    # NOTE: lse may be lse_a or lse_b itself, and all threads have read what one of them now writes.
    tl.debug_barrier()
    tl.store(lse_ptr + outer * lse_outer + row, lse, mask=live)


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._tile, self._flat = tile_of(problem), problem.contiguous

    def run(
        self, o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        tile, flat = self._tile, self._flat
        outer, inner = extent(o_a, flat=flat)
        launch(
            _merge_state,
            (outer * cdiv(inner, tile.rows),),
            o_a.device,
            *state(o_a, lse_a, flat=flat),
            *state(o_b, lse_b, flat=flat),
            *state(out, lse, flat=flat),
            inner, o_a.shape[-1],
            ROWS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps,
        )  # fmt: skip


class _MergeState:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


merge_state = _MergeState()
