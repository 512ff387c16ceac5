"""RMS normalisation."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import load_wide, row_offset, rows, store_rounded
from attnhub_triton_misc.settings import RowSettings, whole_row
from attnhub_triton_misc.tuned import choose


@triton.jit
def inverse_rms(squares, hidden, eps):
    """``1 / sqrt(mean + eps)`` of rows of squares, as a column."""
    return tl.rsqrt(tl.sum(squares, axis=1) / hidden + eps)[:, None]


@triton.jit
def _rmsnorm(
    x_ptr, x_outer, x_inner,
    out_ptr, out_outer, out_inner,
    weight_ptr,
    count, inner, hidden, eps, weight_bias,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = x / sqrt(mean(x^2) + eps) * (weight + weight_bias)``, row by row."""
    overlap(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = (row < count)[:, None]
    x_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
    out_row = out_ptr + row_offset(row, inner, out_outer, out_inner)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    if WHOLE:
        inside = column < hidden
        x = load_wide(x_row + column, live & inside)
        # Before the sum, which waits for x: so both are on their way at once.
        weight = load_wide(weight_ptr + column, inside)
        y = x * inverse_rms(x * x, hidden, eps) * (weight + weight_bias)
        store_rounded(out_row + column, y, live & inside)
    else:
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            x = load_wide(x_row + start + column, live & (start + column < hidden))
            squares += x * x
        scale = inverse_rms(squares, hidden, eps)
        for start in range(0, hidden, BLOCK):
            inside = start + column < hidden
            x = load_wide(x_row + start + column, live & inside)
            weight = load_wide(weight_ptr + start + column, inside)
            y = x * scale * (weight + weight_bias)
            store_rounded(out_row + start + column, y, live & inside)


class _Plan:
    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings

    def run(self, x: Tensor, weight: Tensor, out: Tensor, eps: float, weight_bias: float) -> None:
        hidden, tile = x.shape[-1], self._settings
        for (source, target), (count, inner, strides) in rows(x, out):
            launch(
                _rmsnorm,
                (cdiv(count, tile.rows),),
                x.device,
                source, *strides[:2],
                target, *strides[2:],
                weight,
                count, inner, hidden, eps, weight_bias,
                ROWS=tile.rows, BLOCK=tile.block, WHOLE=tile.block >= hidden,
                num_warps=tile.warps, maxnreg=tile.registers,
            )  # fmt: skip


class _RMSNorm:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(choose(problem, whole_row(problem.hidden)))


rmsnorm = _RMSNorm()
