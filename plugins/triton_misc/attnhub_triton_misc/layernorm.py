"""Layer normalisation."""

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
def _load_affine(weight_ptr, bias_ptr, column, inside):
    """Factor and summand of each column; a bias of None is 0."""
    weight = load_wide(weight_ptr + column, inside)
    bias = tl.zeros_like(weight) if bias_ptr is None else load_wide(bias_ptr + column, inside)
    return weight, bias


@triton.jit
def _long_statistics(x_row, live, column, hidden, BLOCK: tl.constexpr):
    """Mean of each row, and its sum of ``(x - mean)^2``, in one pass over ``hidden > BLOCK``.

    Each column of the tile follows the mean and the centred squares of what it meets (Welford), and
    in the end these are put together (Chan). Nothing is subtracted that is of the size of x^2.
    """
    mean = tl.zeros([live.shape[0], BLOCK], tl.float32)
    squares = tl.zeros([live.shape[0], BLOCK], tl.float32)
    for start in range(0, hidden, BLOCK):
        mask = live & (start + column < hidden)
        x = load_wide(x_row + start + column, mask)
        step = tl.where(mask, x - mean, 0.0)
        mean += step / (start // BLOCK + 1)
        squares += step * (x - mean)
    met = ((hidden - column + BLOCK - 1) // BLOCK).to(tl.float32)
    row_mean = (tl.sum(met * mean, axis=1) / hidden)[:, None]
    apart = mean - row_mean
    return row_mean, tl.sum(squares + met * apart * apart, axis=1)[:, None]


@triton.jit
def _layernorm(
    x_ptr, x_outer, x_inner,
    out_ptr, out_outer, out_inner,
    weight_ptr,
    bias_ptr,
    count, inner, hidden, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias``, row by row."""
    overlap(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = (row < count)[:, None]
    x_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
    out_row = out_ptr + row_offset(row, inner, out_outer, out_inner)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    if WHOLE:
        inside = column < hidden
        mask = live & inside
        x = load_wide(x_row + column, mask)
        # Before the sums, which wait for x: so all are on their way at once.
        weight, bias = _load_affine(weight_ptr, bias_ptr, column, inside)
        mean = (tl.sum(x, axis=1) / hidden)[:, None]
        centred = tl.where(mask, x - mean, 0.0)
        squares = tl.sum(centred * centred, axis=1)[:, None]
        scale = tl.rsqrt(squares / hidden + eps)
        store_rounded(out_row + column, centred * scale * weight + bias, mask)
    else:
        mean, squares = _long_statistics(x_row, live, column, hidden, BLOCK)
        scale = tl.rsqrt(squares / hidden + eps)
        for start in range(0, hidden, BLOCK):
            at = start + column
            inside = at < hidden
            x = load_wide(x_row + at, live & inside)
            weight, bias = _load_affine(weight_ptr, bias_ptr, at, inside)
            store_rounded(out_row + at, (x - mean) * scale * weight + bias, live & inside)


class _Plan:
    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, eps: float) -> None:
        hidden, tile = x.shape[-1], self._settings
        for (source, target), (count, inner, strides) in rows(x, out):
            launch(
                _layernorm,
                (cdiv(count, tile.rows),),
                x.device,
                source, *strides[:2],
                target, *strides[2:],
                weight,
                bias,
                count, inner, hidden, eps,
                ROWS=tile.rows, BLOCK=tile.block, WHOLE=tile.block >= hidden,
                num_warps=tile.warps, maxnreg=tile.registers,
            )  # fmt: skip


class _LayerNorm:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(choose(problem, whole_row(problem.hidden)))


layernorm = _LayerNorm()
