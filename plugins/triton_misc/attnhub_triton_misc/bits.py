"""Booleans and bits, four at a time: as bytes of a 32-bit word, and as half a byte.

One product moves four bits to where they belong: the constants have a bit for each of these moves,
and none of the other bits meet.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def words_of(pointer):
    """The same address, of 32-bit words."""
    return pointer.to(tl.pointer_type(tl.int32))


@triton.jit
def bytes_of(pointer):
    """The same address, of bytes."""
    return pointer.to(tl.pointer_type(tl.uint8))


@triton.jit
def gather(x_ptr, first, end):
    """Words of the booleans ``first`` to ``first + 3``, byte by byte; False from ``end`` on."""
    words = tl.zeros_like(first).to(tl.int32)
    for j in tl.static_range(4):
        x = tl.load(bytes_of(x_ptr) + first + j, mask=first + j < end, other=0)
        words |= x.to(tl.int32) << 8 * j
    return words


@triton.jit
def pack(words, BIG: tl.constexpr):
    """The byte of each pair of words ``[bytes, 2]``."""
    MOVES: tl.constexpr = 0x08040201 if BIG else 0x01020408
    return tl.sum((words * MOVES >> 24 & 0xF) << _place(BIG), axis=1).to(tl.uint8)


@triton.jit
def unpack(packed, BIG: tl.constexpr):
    """The pair of words ``[bytes, 2]`` of each byte."""
    MOVES: tl.constexpr = 0x08040201 if BIG else 0x00204081
    half = packed[:, None].to(tl.int32) >> _place(BIG) & 0xF
    return half * MOVES >> (3 if BIG else 0) & 0x01010101


@triton.jit
def _place(BIG: tl.constexpr):
    """Which half of a byte each of its two words is, as a shift."""
    word = tl.arange(0, 2)[None, :]
    return 4 * (1 - word if BIG else word)
