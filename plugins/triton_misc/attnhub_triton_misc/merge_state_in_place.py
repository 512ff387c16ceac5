"""The merge of an attention state into another."""

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
def _merge_state_in_place(
    o_ptr, o_outer, o_inner, lse_ptr, lse_outer,
    b_ptr, b_outer, b_inner, lse_b_ptr, lse_b_outer,
    mask_ptr,
    inner, dim,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``o = (o * exp(lse) + b * exp(lse_b)) / exp(sum)`` and ``lse = sum``, where ``mask`` is true.

    ``exp(sum) = exp(lse) + exp(lse_b)``. What is masked out is neither read nor written.
    """
    overlap(PDL)
    outer, row = rows_of_program(inner, ROWS)
    live = row < inner
    if mask_ptr is not None:
        live = live & (tl.load(mask_ptr + outer) != 0)
    lse_a = tl.load(lse_ptr + outer * lse_outer + row, mask=live, other=0.0)
    lse_b = tl.load(lse_b_ptr + outer * lse_b_outer + row, mask=live, other=0.0)
    weight_a, weight_b, merged_lse = merge_weights(lse_a, lse_b)
    o_row = o_ptr + outer * o_outer + (row * o_inner)[:, None]
    b_row = b_ptr + outer * b_outer + (row * b_inner)[:, None]
    for start in range(0, dim, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = live[:, None] & (column < dim)
        a = counted(load_wide(o_row + column, mask), lse_a[:, None])
        b = counted(load_wide(b_row + column, mask), lse_b[:, None])
        store_rounded(o_row + column, a * weight_a[:, None] + b * weight_b[:, None], mask)
    # NOTE: all threads have read the LSEs that one of them now overwrites.
    tl.debug_barrier()
    tl.store(lse_ptr + outer * lse_outer + row, merged_lse, mask=live)


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._tile = tile_of(problem)
        # A mask speaks of tokens, so these are told apart.
        self._flat = problem.contiguous and not problem.mask

    def run(self, o: Tensor, lse: Tensor, o_b: Tensor, lse_b: Tensor, mask: Tensor | None) -> None:
        tile, flat = self._tile, self._flat
        outer, inner = extent(o, flat=flat)
        launch(
            _merge_state_in_place,
            (outer * cdiv(inner, tile.rows),),
            o.device,
            *state(o, lse, flat=flat),
            *state(o_b, lse_b, flat=flat),
            mask,
            inner, o.shape[-1],
            ROWS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps,
        )  # fmt: skip


class _MergeStateInPlace:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


merge_state_in_place = _MergeStateInPlace()
