"""A kernel that calls a hook of a variant at every position of a grid."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32


@triton.jit
def _grid(
    x_ptr, out_ptr, heads, rows, columns, shift, params,
    HOOK: tl.constexpr, NAME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``out = HOOK(x, ...)``; a program takes one head of one request."""
    request, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    place = ((request * heads + head) * rows + row) * columns + column
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    h = tl.full([BLOCK, 1], 0, tl.int32) + head
    if NAME == "score_mod":
        y = HOOK(x, request, h, row + shift, column, params)
    elif NAME == "mask_mod":
        y = HOOK(request, h, row + shift, column, params)
    elif NAME == "key_mod":
        y = HOOK(x, request, h, row, column, params)
    else:
        y = HOOK(x, request, h, row + shift, column, params)
    y = tl.broadcast_to(y, [BLOCK, BLOCK]) if len(y.shape) else tl.full([BLOCK, BLOCK], y, y.dtype)
    tl.store(out_ptr + place, y.to(tl.float32), mask=mask)


def launch(
    name: str, hook: Any, x: Tensor, out: Tensor, params: tuple[Any, ...], shift: int
) -> None:
    requests, heads, rows, columns = x.shape
    _grid[requests, heads](
        x, out, heads, rows, columns, shift, params, HOOK=hook, NAME=name, BLOCK=BLOCK
    )
