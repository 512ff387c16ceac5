"""FP8 values times their scales."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.fp8 import decode
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import row_offset, store_rounded
from attnhub_triton_misc.scaling import (
    as_codes,
    is_per_column,
    load_scales,
    scaled_rows,
    tile_of,
)
from attnhub_triton_misc.settings import scaled
from attnhub_triton_misc.tuned import choose


@triton.jit
def _dequantize(
    code_ptr, code_outer, code_inner,
    scale_ptr, scale_outer, scale_inner,
    out_ptr, out_outer, out_inner,
    steps, count, inner, hidden,
    PER_COLUMN: tl.constexpr, E5M2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``out = value(code) * scale``, formed in float32."""
    overlap(PDL)
    row, column, mask = tile_of(tl.program_id(0), steps, count, hidden, ROWS, BLOCK)
    code_row = code_ptr + row_offset(row, inner, code_outer, code_inner)[:, None]
    code = tl.load(code_row + column[None, :], mask=mask, other=0)
    scale = load_scales(
        scale_ptr, scale_outer, scale_inner, row, column, count, inner, hidden, PER_COLUMN
    )
    out_row = out_ptr + row_offset(row, inner, out_outer, out_inner)[:, None]
    store_rounded(out_row + column[None, :], decode(code, E5M2) * scale, mask)


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._tile = choose(problem, scaled(problem.extent.tokens, problem.hidden))

    def run(self, stored: Tensor, scale: Tensor, out: Tensor, axis: int | None) -> None:
        hidden, tile = stored.shape[-1], self._tile
        steps = cdiv(hidden, tile.block)
        per_column, e5m2 = is_per_column(stored, axis), stored.dtype == torch.float8_e5m2
        for (codes, scales, target), (count, inner, strides) in scaled_rows(
            as_codes(stored), scale, out, axis
        ):
            launch(
                _dequantize,
                (cdiv(count, tile.rows) * steps,),
                out.device,
                codes, *strides[:2],
                scales, *strides[2:4],
                target, *strides[4:],
                steps, count, inner, hidden,
                PER_COLUMN=per_column, E5M2=e5m2, ROWS=tile.rows, BLOCK=tile.block,
                num_warps=tile.warps,
            )  # fmt: skip


class _DequantizeFp8:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


dequantize_fp8 = _DequantizeFp8()
