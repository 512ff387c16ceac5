"""Small kernels for what the interpreter is mended of."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _cast(x_ptr, out_ptr, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(out_ptr + place, tl.load(x_ptr + place).to(out_ptr.dtype.element_ty))


@triton.jit
def _dot(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a_ptr + place), tl.load(b_ptr + place), input_precision="ieee")
    tl.store(out_ptr + place, product)


@triton.jit
def _choose(scalar_ptr, out_ptr, N: tl.constexpr):
    """1 past 7 and where the scalar is; a comparison of scalars meets one of blocks."""
    place = tl.arange(0, N)
    scalar = tl.load(scalar_ptr)
    is_two = scalar == 2.0
    tl.store(out_ptr + place, tl.where((place > 7) | (is_two & (place == 2)), 1, 0))


@triton.jit
def _count(bounds_ptr, out_ptr):
    """The sum of the whole numbers between two bounds."""
    total = 0
    for number in range(tl.load(bounds_ptr), tl.load(bounds_ptr + 1)):
        total += number
    tl.store(out_ptr, total)


def cast(x: Tensor, out: Tensor) -> None:
    _cast[(1,)](x, out, N=x.numel())


def dot(a: Tensor, b: Tensor, out: Tensor) -> None:
    _dot[(1,)](a, b, out, N=len(a))


def choose(scalar: Tensor, out: Tensor) -> None:
    _choose[(1,)](scalar, out, N=out.numel())


def count(bounds: Tensor, out: Tensor) -> None:
    _count[(1,)](bounds, out)
