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


@triton.jit
def _extremes(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    """Rows of out: maximum, minimum and clamp, without NaN and with it; then max and min of a."""
    place = tl.arange(0, N)
    a, b = tl.load(a_ptr + place), tl.load(b_ptr + place)
    tl.store(out_ptr + place, tl.maximum(a, b))
    tl.store(out_ptr + N + place, tl.minimum(a, b))
    tl.store(out_ptr + 2 * N + place, tl.clamp(a, -1.0, 1.0))
    tl.store(out_ptr + 3 * N + place, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 4 * N + place, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 5 * N + place, tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))
    rows = a.reshape(N // 4, 4)
    row = tl.arange(0, N // 4)
    tl.store(out_ptr + 6 * N + row, tl.max(rows, axis=1))
    tl.store(out_ptr + 7 * N + row, tl.min(rows, axis=1))
    tl.store(out_ptr + 8 * N, tl.max(a, axis=0))
    tl.store(out_ptr + 8 * N + 1, tl.min(a, axis=0))


@triton.jit
def _fma(a_ptr, b_ptr, c_ptr, out_ptr, N: tl.constexpr):
    place = tl.arange(0, N)
    a, b, c = tl.load(a_ptr + place), tl.load(b_ptr + place), tl.load(c_ptr + place)
    tl.store(out_ptr + place, tl.fma(a, b, c))


def fma(a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> None:
    _fma[(1,)](a, b, c, out, N=a.numel())


def cast(x: Tensor, out: Tensor) -> None:
    _cast[(1,)](x, out, N=x.numel())


def dot(a: Tensor, b: Tensor, out: Tensor) -> None:
    _dot[(1,)](a, b, out, N=len(a))


def choose(scalar: Tensor, out: Tensor) -> None:
    _choose[(1,)](scalar, out, N=out.numel())


def extremes(a: Tensor, b: Tensor, out: Tensor) -> None:
    _extremes[(1,)](a, b, out, N=a.numel())


def count(bounds: Tensor, out: Tensor) -> None:
    _count[(1,)](bounds, out)
