"""RMS normalisation of a sum, in place."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rmsnorm import inverse_rms
from attnhub_triton_misc.rows import load_wide, row_offset, rows, store_rounded
from attnhub_triton_misc.settings import RowSettings, whole_row
from attnhub_triton_misc.tuned import choose


@triton.jit
def _fused_add_rmsnorm(
    x_ptr, x_outer, x_inner,
    residual_ptr, residual_outer, residual_inner,
    weight_ptr,
    count, inner, hidden, eps, weight_bias,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``residual = s`` and ``x = s / sqrt(mean(s^2) + eps) * (weight + weight_bias)``.

    ``s = x + residual`` in float32; ``x`` takes the norm of that, not of what ``residual`` holds
    of it.
    """
    overlap(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = (row < count)[:, None]
    x_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
    residual_row = residual_ptr + row_offset(row, inner, residual_outer, residual_inner)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    if WHOLE:
        inside = column < hidden
        mask = live & inside
        total = load_wide(x_row + column, mask) + load_wide(residual_row + column, mask)
        # Before the total is used, which waits for memory: so all are on their way at once.
        weight = load_wide(weight_ptr + column, inside)
        store_rounded(residual_row + column, total, mask)
        y = total * inverse_rms(total * total, hidden, eps) * (weight + weight_bias)
        store_rounded(x_row + column, y, mask)
    else:
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            at = start + column
            mask = live & (at < hidden)
            total = load_wide(x_row + at, mask) + load_wide(residual_row + at, mask)
            squares += total * total
        scale = inverse_rms(squares, hidden, eps)
        for start in range(0, hidden, BLOCK):
            at = start + column
            mask = live & (at < hidden)
            total = load_wide(x_row + at, mask) + load_wide(residual_row + at, mask)
            weight = load_wide(weight_ptr + at, at < hidden)
            store_rounded(residual_row + at, total, mask)
            store_rounded(x_row + at, total * scale * (weight + weight_bias), mask)


class _Plan:
    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings

    def run(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_bias: float
    ) -> None:
        hidden, tile = x.shape[-1], self._settings
        for (values, sums), (count, inner, strides) in rows(x, residual):
            launch(
                _fused_add_rmsnorm,
                (cdiv(count, tile.rows),),
                x.device,
                values, *strides[:2],
                sums, *strides[2:],
                weight,
                count, inner, hidden, eps, weight_bias,
                ROWS=tile.rows, BLOCK=tile.block, WHOLE=tile.block >= hidden,
                num_warps=tile.warps, maxnreg=tile.registers,
            )  # fmt: skip


class _FusedAddRMSNorm:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(choose(problem, whole_row(problem.hidden)))


fused_add_rmsnorm = _FusedAddRMSNorm()
