"""The scales that make the largest magnitude the largest FP8 number, where a tile is too small.

Shares of each maximum are found first, by programs that go through more than a tile each, and
joined then. No atomics, since these would need zeros to start from.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import row_offset, rows
from attnhub_triton_misc.scaling import is_per_column, tile_of
from attnhub_triton_misc.settings import COLUMN_MAXIMA, JOINED, MAXIMA, SHARES


@triton.jit
def magnitude(x):
    """The bits of ``|x|``, which are ordered as it is; 0 for infinities and NaN."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits < 0x7F800000, bits, 0)


@triton.jit
def fitting(largest, E5M2: tl.constexpr):
    """The scale of what has such a largest magnitude, of which the bits are given.

    At least the smallest normal number: some devices take subnormals for zero.
    """
    LIMIT: tl.constexpr = 57344.0 if E5M2 else 448.0
    scale = tl.div_rn(largest.to(tl.float32, bitcast=True), LIMIT)
    return tl.where(largest == 0, 1.0, tl.maximum(scale, 1.1754943508222875e-38))


@triton.jit
def _row_maxima(
    x_ptr, x_index, x_outer, x_inner,
    out_ptr, out_share,
    tiles, steps, count, inner, hidden,
    FIT: tl.constexpr, E5M2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Largest magnitude of a share of the rows of an index, or the scale made of it."""
    overlap(PDL)
    index, share = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest = tl.zeros([ROWS, BLOCK], tl.int32)
    for tile in range(share, tiles, tl.num_programs(1)):
        row, column, mask = tile_of(tile, steps, count, hidden, ROWS, BLOCK)
        x_row = x_ptr + index * x_index + row_offset(row, inner, x_outer, x_inner)[:, None]
        x = tl.load(x_row + column[None, :], mask=mask, other=0.0)
        largest = tl.maximum(largest, magnitude(x))
    largest = tl.max(tl.max(largest, axis=1), axis=0)
    out = out_ptr + share * out_share + index
    if FIT:
        tl.store(out, fitting(largest, E5M2))
    else:
        tl.store(out, largest.to(tl.float32, bitcast=True))


@triton.jit
def _column_maxima(
    x_ptr, x_outer, x_inner,
    out_ptr, out_share,
    tiles, count, inner, hidden,
    FIT: tl.constexpr, E5M2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Largest magnitude in a share of each column, or the scale made of it."""
    overlap(PDL)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    share = tl.program_id(1)
    largest = tl.zeros([ROWS, BLOCK], tl.int32)
    for tile in range(share, tiles, tl.num_programs(1)):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        x_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
        mask = (row < count)[:, None] & (column < hidden)[None, :]
        x = tl.load(x_row + column[None, :], mask=mask, other=0.0)
        largest = tl.maximum(largest, magnitude(x))
    largest = tl.max(largest, axis=0)
    out = out_ptr + share * out_share + column
    if FIT:
        tl.store(out, fitting(largest, E5M2), mask=column < hidden)
    else:
        tl.store(out, largest.to(tl.float32, bitcast=True), mask=column < hidden)


@triton.jit
def _join(
    share_ptr,
    scale_ptr,
    count, shares,
    E5M2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The scale of each index, made of the largest of its shares ``[shares, count]``."""
    overlap(PDL)
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (index < count)[:, None]
    largest = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(0, shares, BLOCK):
        share = start + tl.arange(0, BLOCK)[None, :]
        mask = live & (share < shares)
        found = tl.load(share_ptr + share * count + index[:, None], mask=mask, other=0.0)
        largest = tl.maximum(largest, found.to(tl.int32, bitcast=True))
    tl.store(scale_ptr + index, fitting(tl.max(largest, axis=1), E5M2), mask=index < count)


def fit(x: Tensor, scale: Tensor, axis: int | None, *, e5m2: bool) -> None:
    """Write the scales that fit, from as many shares of each as keep the GPU busy."""
    if 0 in x.shape:
        scale.fill_(1.0)
        return
    hidden, per_column = x.shape[-1], is_per_column(x, axis)
    parts = rows(x if axis is None or per_column else x.select(axis, 0))
    tile = (COLUMN_MAXIMA if per_column else MAXIMA).cut_for(hidden)
    steps, tiles = cdiv(hidden, tile.block), cdiv(parts[0][1].total, tile.rows)
    programs, tiles = (steps, tiles) if per_column else (scale.numel(), tiles * steps)
    shares = max(min(SHARES // (programs * len(parts)), tiles), 1)
    total = shares * len(parts)
    found = scale if total == 1 else scale.new_empty(total, scale.numel())
    for part, ((source,), (count, inner, strides)) in enumerate(parts):
        target = found[part * shares :] if part else found
        options = {"FIT": total == 1, "E5M2": e5m2, "ROWS": tile.rows, "BLOCK": tile.block}
        if per_column:
            launch(
                _column_maxima,
                (programs, shares),
                x.device,
                source, *strides,
                target, hidden,
                tiles, count, inner, hidden,
                **options,
                num_warps=tile.warps,
            )  # fmt: skip
        else:
            launch(
                _row_maxima,
                (programs, shares),
                x.device,
                source, 0 if axis is None else x.stride(axis), *strides,
                target, programs,
                tiles, steps, count, inner, hidden,
                **options,
                num_warps=tile.warps,
            )  # fmt: skip
    if total > 1:
        launch(
            _join,
            (cdiv(scale.numel(), JOINED.rows),),
            x.device,
            found,
            scale,
            scale.numel(), total,
            E5M2=e5m2, ROWS=JOINED.rows, BLOCK=JOINED.block,
            num_warps=JOINED.warps,
        )  # fmt: skip
