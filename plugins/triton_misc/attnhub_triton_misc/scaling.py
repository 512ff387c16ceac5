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
    """``x / scale``, rounded once, where many ``x`` share a scale.

    A division is some twenty instructions, which takes longer than memory does. So the scale's
    inverse is multiplied by, and what that is off is found by FMA and taken in (Markstein, 1990).
    """
    # The inverse of a subnormal scale would be infinite.
    factor = tl.where(tl.abs(scale) < 2.0**-100, 2.0**64, 1.0)
    scale, x = scale * factor, x * factor
    inverse = tl.div_rn(1.0, scale)
    y = x * inverse
    rest = tl.fma(-y, scale, x)
    # Nothing is left of zeros, whose sign a sum would lose. It is infinite or NaN by infinities, NaN
    # or a scale of 0, where the product is what a quotient is.
    size = tl.abs(rest)
    return tl.where((size > 0.0) & (size < float("inf")), tl.fma(rest, inverse, y), y)


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
