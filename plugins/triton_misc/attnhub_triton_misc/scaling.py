"""Tensors ``[..., n]`` whose elements have a scale each, along one axis or one for all."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.rows import Rows, row_offset, rows


def scaled_rows(
    x: Tensor, scale: Tensor, out: Tensor, axis: int | None
) -> list[tuple[tuple[Tensor, ...], Rows]]:
    """:func:`rows` of ``x``, ``scale`` and ``out``: a scale is one more tensor of the same shape.

    It does not move where rows share it, nor along a row: with the last axis, where
    :func:`is_per_column`, a row's scales start at the first.
    """
    strides = [0] * x.dim()
    if axis is not None and not is_per_column(x, axis):
        strides[axis] = scale.stride(0)
    return rows(x, scale.as_strided(x.shape, strides), out)


def is_per_column(x: Tensor, axis: int | None) -> bool:
    """Whether each element of a row has a scale of its own."""
    return axis == x.dim() - 1


def as_codes(x: Tensor) -> Tensor:
    """FP8 as bytes: Triton refuses pointers to what a GPU has no instructions for."""
    return x.view(torch.uint8)


@triton.jit
def tile_of(index, steps, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows (int64), columns and mask of a tile; ``steps`` of them go through the same rows."""
    row = (index // steps).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = index % steps * BLOCK + tl.arange(0, BLOCK)
    return row, column, (row < count)[:, None] & (column < hidden)[None, :]


@triton.jit
def quotient(x, scale):
    """``x / scale`` for FP8, rounded once, where many ``x`` share a scale; saturates past 2^20.

    A division is some twenty instructions, which takes longer than memory does. So the scale's
    inverse is multiplied by, and what that is off is found by FMA and taken in (Markstein, 1990).
    """
    # The inverse of a subnormal scale would be infinite, what is off at a small one subnormal.
    factor = tl.where(tl.abs(scale) < 2.0**-60, 2.0**64, 1.0)
    scale, x = scale * factor, x * factor
    inverse = tl.div_rn(1.0, scale)
    # Beyond FP8 all is one, and what is finite here stays so below. NaN is no bound's matter.
    y = tl.clamp(x * inverse, -(2.0**20), 2.0**20, propagate_nan=tl.PropagateNan.ALL)
    scale = tl.where(tl.abs(scale) == float("inf"), 0.0, scale)
    exact = tl.fma(tl.fma(-y, scale, x), inverse, y)
    # The sum loses the sign of a zero. Comparisons that spare zeros would be six instructions.
    bits = exact.to(tl.int32, bitcast=True) | (y.to(tl.int32, bitcast=True) & -0x80000000)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_scales(
    scale_ptr, scale_outer, scale_inner,
    row, column,
    count, inner, hidden,
    PER_COLUMN: tl.constexpr,
):  # fmt: skip
    """The scales of a tile, as a row or as a column."""
    if PER_COLUMN:
        scale = tl.load(scale_ptr + column, mask=column < hidden, other=1.0)[None, :]
    else:
        offset = row_offset(row, inner, scale_outer, scale_inner)
        scale = tl.load(scale_ptr + offset, mask=row < count, other=1.0)[:, None]
    return scale
