"""What emitted Triton calls: operations of the expression language that Triton lacks."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """Floor of the exact quotient; Triton's own rounds towards zero."""
    quotient = a // b
    remainder = a - quotient * b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_mod(a, b):
    """What ``floor_div`` leaves: it has the sign of b."""
    return a - floor_div(a, b) * b


@triton.jit
def log1p(x):
    """Natural logarithm of 1 + x; the correction is the part of x that 1 + x rounds off.

    Source: Goldberg, "What Every Computer Scientist Should Know About Floating-Point Arithmetic"
    (1991), theorem 4.
    """
    sum_ = 1.0 + x
    rest = sum_ - 1.0
    return tl.where((rest == 0.0) | (sum_ == float("inf")), x, tl.log(sum_) * (x / rest))


@triton.jit
def tanh(x):
    """Hyperbolic tangent; near 0 by its series, where the quotient of exponentials cancels."""
    size = tl.abs(x)
    shrunk = tl.exp(-2.0 * size)
    square = size * size
    # The next term of the series, 62/2835 x^9, is below 2^-24 of x there.
    series = size * (1.0 - square * (0.33333333 - square * (0.13333333 - square * 0.053968254)))
    found = tl.where(size < 0.15, series, (1.0 - shrunk) / (1.0 + shrunk))
    return tl.where(x < 0.0, -found, found)


@triton.jit
def power(a, b):
    """``a`` to the power of ``b``, as IEEE 754 has it of zeros, infinities and NaN.

    By ``2^(b log2 a)``, whose relative error grows with that exponent: 2^-17 at the largest.
    """
    base, down = tl.abs(a), tl.floor(b)
    size = tl.where(base == 1.0, 1.0, tl.exp2(b * tl.log2(base)))
    is_odd = (down == b) & (tl.floor(b * 0.5) * 2.0 != b)
    is_negative = a.to(tl.int32, bitcast=True) < 0  # as -0.0 is
    is_complex = (a < 0.0) & (base != float("inf")) & (down != b)
    found = tl.where(is_complex, float("nan"), tl.where(is_negative & is_odd, -size, size))
    return tl.where((b == 0.0) | (a == 1.0), 1.0, found)


@triton.jit
def inside(index, size):
    """An index moved into a tensor's axis: lanes past the end of a sequence read something."""
    return tl.minimum(tl.maximum(index, 0), size - 1).to(tl.int64)
