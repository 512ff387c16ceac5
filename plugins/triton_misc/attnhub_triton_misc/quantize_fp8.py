"""FP8 values and their scales."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.fp8 import cast, encode, has_casts
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.maxima import fit, fitting, magnitude
from attnhub_triton_misc.rows import Rows, load_wide, row_offset, rows
from attnhub_triton_misc.scaling import (
    as_codes,
    is_per_column,
    load_scales,
    quotient,
    scaled_rows,
    tile_of,
)
from attnhub_triton_misc.settings import WHOLE_ROWS, scaled, whole_row
from attnhub_triton_misc.tuned import choose


@triton.jit
def _code(x, scale, E5M2: tl.constexpr, CAST: tl.constexpr):
    y = quotient(x, scale)
    return cast(y, E5M2) if CAST else encode(y, E5M2)


@triton.jit
def _quantize(
    x_ptr, x_outer, x_inner,
    scale_ptr, scale_outer, scale_inner,
    code_ptr, code_outer, code_inner,
    steps, count, inner, hidden,
    PER_COLUMN: tl.constexpr, E5M2: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``code = encode(x / scale)``."""
    overlap(PDL)
    row, column, mask = tile_of(tl.program_id(0), steps, count, hidden, ROWS, BLOCK)
    x_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
    x = load_wide(x_row + column[None, :], mask)
    scale = load_scales(
        scale_ptr, scale_outer, scale_inner, row, column, count, inner, hidden, PER_COLUMN
    )
    code_row = code_ptr + row_offset(row, inner, code_outer, code_inner)[:, None]
    tl.store(code_row + column[None, :], _code(x, scale, E5M2, CAST), mask=mask)


@triton.jit
def _quantize_to_fit(
    x_ptr, x_outer, x_inner,
    code_ptr, code_outer, code_inner,
    scale_ptr,
    count, width,
    HIDDEN: tl.constexpr, E5M2: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``scale[i] = max |x[i]| / limit``, then ``code[i] = encode(x[i] / scale[i])``.

    Each ``x[i]`` is in registers as a whole: ``width`` elements, in rows of ``HIDDEN``.
    """
    overlap(PDL)
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element = tl.arange(0, BLOCK)[None, :]
    mask = (index < count)[:, None] & (element < width)
    row, column = (element // HIDDEN).to(tl.int64), element % HIDDEN
    x = load_wide(x_ptr + (index * x_outer)[:, None] + row * x_inner + column, mask)
    # A maximum drops NaN. Infinities have to be left out, where there are any.
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), 0.0).to(tl.int32, bitcast=True)
    if tl.max(largest, axis=0) >= 0x7F800000:
        largest = tl.max(magnitude(x), axis=1)
    scale = fitting(largest, E5M2)
    tl.store(scale_ptr + index, scale, mask=index < count)
    code = _code(x, scale[:, None], E5M2, CAST)
    tl.store(code_ptr + (index * code_outer)[:, None] + row * code_inner + column, code, mask=mask)


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._tile = choose(problem, scaled(problem.extent.tokens, problem.hidden))
        self._options = {
            "E5M2": problem.fp8 == "float8_e5m2",
            "CAST": has_casts(problem.device),
        }

    def run(
        self,
        x: Tensor,
        scale: Tensor | None,
        out: Tensor,
        scale_out: Tensor | None,
        axis: int | None,
    ) -> None:
        codes = as_codes(out)
        if scale_out is None:
            assert scale is not None, "a scale is given where none is asked for"
            self._quantize(x, scale, codes, axis)
        elif axis == 0 and (whole := _rows_of_index(x, codes)) is not None:
            self._quantize_to_fit(x, codes, scale_out, whole)
        else:
            fit(x, scale_out, axis, e5m2=self._options["E5M2"])
            self._quantize(x, scale_out, codes, axis)

    def _quantize(self, x: Tensor, scale: Tensor, codes: Tensor, axis: int | None) -> None:
        hidden, tile = x.shape[-1], self._tile
        steps, per_column = cdiv(hidden, tile.block), is_per_column(x, axis)
        for (source, scales, target), (count, inner, strides) in scaled_rows(x, scale, codes, axis):
            launch(
                _quantize,
                (cdiv(count, tile.rows) * steps,),
                x.device,
                source, *strides[:2],
                scales, *strides[2:4],
                target, *strides[4:],
                steps, count, inner, hidden,
                PER_COLUMN=per_column, **self._options, ROWS=tile.rows, BLOCK=tile.block,
                num_warps=tile.warps,
            )  # fmt: skip

    def _quantize_to_fit(self, x: Tensor, codes: Tensor, scale: Tensor, whole: Rows) -> None:
        width = whole.total * x.shape[-1]
        tile = whole_row(width)
        launch(
            _quantize_to_fit,
            (cdiv(len(x), tile.rows),),
            x.device,
            x, x.stride(0), whole.strides[0],
            codes, codes.stride(0), whole.strides[2],
            scale,
            len(x), width,
            HIDDEN=x.shape[-1], **self._options, ROWS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps, maxnreg=tile.registers,
        )  # fmt: skip


def _rows_of_index(x: Tensor, codes: Tensor) -> Rows | None:
    """The rows of ``x[i]`` and ``codes[i]``, if a tile holds all of them and they lie as one."""
    if x.dim() == 1 or 0 in x.shape or x.numel() // len(x) > WHOLE_ROWS[-1].block:
        return None
    if x.dim() == 2:  # most calls: one row
        return Rows(1, 1, (0, 0, 0, 0))
    parts = rows(x[0], codes[0])
    found = parts[0][1]
    return found if len(parts) == 1 and found.inner == 1 else None


class _QuantizeFp8:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


quantize_fp8 = _QuantizeFp8()
