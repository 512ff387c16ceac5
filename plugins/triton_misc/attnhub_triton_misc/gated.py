"""What the gated activations share: all but the activation."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc import fp8
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.rows import load_wide, row_offset, rows, store_rounded
from attnhub_triton_misc.settings import streamed
from attnhub_triton_misc.tuned import choose


@triton.jit
def reciprocal(x):
    """``1 / x`` for ``x >= 1``, infinity included: two instructions, where a division is six."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def _gated(
    x_ptr, x_outer, x_inner,
    out_ptr, out_outer, out_inner,
    scale_ptr,
    count, inner, hidden,
    ACTIVATION: tl.constexpr, ENCODE: tl.constexpr, E5M2: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = ACTIVATION(x[:hidden]) * x[hidden:]``, row by row.

    With a scale, ``out`` is the FP8 code of that over the scale. Programs go along a row first.
    """
    overlap(PDL)
    blocks = tl.cdiv(hidden, BLOCK)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (row < count)[:, None] & (column < hidden)
    gate_row = x_ptr + row_offset(row, inner, x_outer, x_inner)[:, None]
    out_row = out_ptr + row_offset(row, inner, out_outer, out_inner)[:, None]
    gate = load_wide(gate_row + column, mask)
    up = load_wide(gate_row + hidden + column, mask)
    y = ACTIVATION(gate) * up
    if scale_ptr is None:
        store_rounded(out_row + column, y, mask)
    else:
        tl.store(out_row + column, ENCODE(y / tl.load(scale_ptr), E5M2), mask=mask)


class _Plan:
    def __init__(self, activation: Any, problem: Any) -> None:
        self._activation = activation
        self._tile = choose(problem, streamed(problem.extent.tokens, problem.hidden))
        self._encode = fp8.cast if fp8.has_casts(problem.device) else fp8.encode
        self._e5m2 = problem.out_dtype == "float8_e5m2"

    def run(self, x: Tensor, out: Tensor, scale: Tensor | None) -> None:
        hidden, tile = out.shape[-1], self._tile
        stored = out if scale is None else out.view(torch.uint8)
        for (source, target), (count, inner, strides) in rows(x, stored):
            launch(
                _gated,
                (cdiv(count, tile.rows) * cdiv(hidden, tile.block),),
                x.device,
                source, *strides[:2],
                target, *strides[2:],
                scale,
                count, inner, hidden,
                ACTIVATION=self._activation, ENCODE=self._encode, E5M2=self._e5m2,
                ROWS=tile.rows, BLOCK=tile.block,
                num_warps=tile.warps,
            )  # fmt: skip


class Gated:
    """Plans products with an activation, a function of a float32 tile."""

    def __init__(self, activation: Any) -> None:
        self._activation = activation

    def plan(self, problem: Any) -> _Plan:
        return _Plan(self._activation, problem)
