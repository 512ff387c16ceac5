"""Which part of a row pointer a number falls into."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ends_until(indptr_ptr, count, number, STEPS: tl.constexpr):
    """How many of ``count`` parts end at or before ``number``: the index of the part it is in.

    Empty parts end where they start, so that no number is in one. ``STEPS`` is the bit length of
    ``count``: the result is found bit by bit from the highest.
    """
    found = number * 0  # of the same shape, if it has one
    for step in tl.static_range(STEPS):
        probe = found + (1 << (STEPS - 1 - step))
        inside = probe <= count
        end = tl.load(indptr_ptr + probe, mask=inside, other=0)
        found = tl.where(inside & (end <= number), probe, found)
    return found
