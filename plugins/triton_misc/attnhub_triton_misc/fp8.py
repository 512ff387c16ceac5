"""FP8 codes as uint8, made and read on every GPU.

Those without FP8 instructions do it by arithmetic. Kernels get FP8 tensors as uint8, since Triton
refuses pointers to types that a GPU does not have.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnhub.plugin import Device


def has_casts(device: Device) -> bool:
    """Whether Triton casts float32 to FP8 by one instruction; before sm_90 it rounds twice."""
    return (device.sm or 0) >= 90


@triton.jit
def cast(x, E5M2: tl.constexpr):
    """:func:`encode` by one instruction for two values, see :func:`has_casts`.

    It drops the sign of NaN.
    """
    return x.to(tl.float8e5 if E5M2 else tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def encode(x, E5M2: tl.constexpr):
    """The code of float32 ``x``: nearest, ties to even; saturating, infinities too; NaN is NaN.

    ``E5M2`` has 2 bits of mantissa and an exponent bias of 15, e4m3 has 3 and 7.
    """
    SHIFT: tl.constexpr = 21 if E5M2 else 20
    LIMIT: tl.constexpr = 0x47600000 if E5M2 else 0x43E00000  # 57344 and 448
    NORMAL: tl.constexpr = 0x38800000 if E5M2 else 0x3C800000  # 2^-14 and 2^-6
    MAGIC: tl.constexpr = 128.0 if E5M2 else 16384.0  # whose ulp is the smallest subnormal
    # Half an ulp less one, and the exponent's bias of FP8 in place of that of float32.
    REBIAS: tl.constexpr = (1 << (SHIFT - 1)) - 1 - (NORMAL - (1 << 23))

    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    finite = tl.minimum(magnitude, LIMIT)
    normal = (finite + (REBIAS + (finite >> SHIFT & 1))) >> SHIFT
    # Below, the sum rounds to a multiple of the smallest subnormal, and its last bits count them.
    subnormal = (finite.to(tl.float32, bitcast=True) + MAGIC).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(finite < NORMAL, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | (bits >> 24 & 0x80)).to(tl.uint8)


@triton.jit
def decode(code, E5M2: tl.constexpr):
    """The float32 value of a code, which holds it exactly.

    e5m2 is the upper half of a float16. Where e4m3's bits stand for a float16, with one bit of
    exponent more, that is the value over 256; converted to float32, subnormals are normal numbers.
    """
    bits = code.to(tl.int16)
    if E5M2:
        return (bits << 8).to(tl.float16, bitcast=True).to(tl.float32)
    bits = (bits + (bits & 0x80)) << 7  # twice the sign's bit: it moves over the free one
    value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)
