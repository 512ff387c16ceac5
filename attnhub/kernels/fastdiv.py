"""The constants by which ``common/fastdiv.cuh`` divides."""

from __future__ import annotations

from typing import NamedTuple

from attnhub.errors import InvalidArgument
from attnhub.jit.params import ParamLayout

__all__ = ["FAST_DIV", "FastDivisor", "fast_divisor"]

#: ``attnhub::FastDiv`` as a member of a parameter struct.
FAST_DIV = ParamLayout({"divisor": "u32", "multiplier": "u32", "shift": "u32"})

_LIMIT = 2**31


class FastDivisor(NamedTuple):
    """Values of ``FAST_DIV``, in its order."""

    divisor: int
    multiplier: int
    shift: int


def fast_divisor(divisor: int) -> FastDivisor:
    """What divides numbers below 2^31 by ``divisor`` with a multiplication.

    With ``s = ceil(log2(divisor))`` the multiplier is ``2^(32 + s) / divisor``, rounded up, less
    the 2^32 that the device adds back: too little above it to reach the next quotient (Granlund
    and Montgomery 1994, theorem 4.2).

    Args:
        divisor: 1 to 2^31 - 1.

    Raises:
        InvalidArgument: a divisor out of that range.

    Example:
        >>> fast_divisor(16)
        FastDivisor(divisor=16, multiplier=1, shift=4)
    """
    if not 1 <= divisor < _LIMIT:
        raise InvalidArgument(f"divisor={divisor}: give 1 to {_LIMIT - 1}")
    shift = (divisor - 1).bit_length()
    multiplier = (2**32 * (2**shift - divisor)) // divisor + 1
    return FastDivisor(divisor=divisor, multiplier=multiplier, shift=shift)
