"""Eight booleans into a byte, each segment from a new byte."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.bits import gather, pack, words_of
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.search import ends_until
from attnhub_triton_misc.settings import BYTES


@triton.jit
def _byte_starts(
    indptr_ptr,
    byte_indptr_ptr,
    segments,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``byte_indptr[i + 1] = byte_indptr[i] + ceil((indptr[i + 1] - indptr[i]) / 8)``, from 0."""
    overlap(PDL)
    tl.store(byte_indptr_ptr, 0)
    before = tl.zeros([], tl.int32)
    for start in range(0, segments, BLOCK):
        segment = start + tl.arange(0, BLOCK)
        live = segment < segments
        first = tl.load(indptr_ptr + segment, mask=live, other=0)
        end = tl.load(indptr_ptr + segment + 1, mask=live, other=0)
        size = end - first + 7 >> 3
        tl.store(byte_indptr_ptr + segment + 1, before + tl.cumsum(size), mask=live)
        before += tl.sum(size)


@triton.jit
def _segment_packbits(
    x_ptr,
    indptr_ptr, byte_indptr_ptr,
    out_ptr,
    count, segments, total_bytes,
    STEPS: tl.constexpr, BIG: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``out[byte_indptr[s] + i]`` has the booleans from ``x[indptr[s] + 8 i]`` on, or zeros.

    Most tiles lie within one segment, where booleans are read by words, wherever it starts.
    """
    overlap(PDL)
    first_byte = tl.program_id(0).to(tl.int64) * BLOCK
    byte = first_byte + tl.arange(0, BLOCK)
    word = tl.arange(0, 2)[None, :]
    first, end = _source(first_byte, indptr_ptr, byte_indptr_ptr, segments, STEPS)
    last = first + 8 * BLOCK
    # The last word that is read may lie behind the tile; out may end before the segments do.
    if ALIGNED and last <= end and last + 4 <= count and first_byte + BLOCK <= total_bytes:
        within = 2 * tl.arange(0, BLOCK)[:, None] + word
        tl.store(out_ptr + byte, pack(_words_from(x_ptr, first, within), BIG))
    else:
        firsts, ends = _source(byte, indptr_ptr, byte_indptr_ptr, segments, STEPS)
        words = gather(x_ptr, firsts[:, None] + 4 * word, tl.minimum(ends, count)[:, None])
        tl.store(out_ptr + byte, pack(words, BIG), mask=byte < total_bytes)


@triton.jit
def _source(byte, indptr_ptr, byte_indptr_ptr, segments, STEPS: tl.constexpr):
    """The first boolean of a byte, and the end of its segment; the last one's behind them all."""
    segment = tl.minimum(ends_until(byte_indptr_ptr, segments, byte, STEPS), segments - 1)
    within = byte - tl.load(byte_indptr_ptr + segment)
    return tl.load(indptr_ptr + segment) + 8 * within, tl.load(indptr_ptr + segment + 1)


@triton.jit
def _words_from(x_ptr, first, word):
    """Words of the four booleans each from ``first`` on, out of two that lie at a multiple of 4."""
    pointer = words_of(x_ptr) + first // 4 + word
    low = tl.load(pointer).to(tl.uint32, bitcast=True)
    high = tl.load(pointer + 1).to(tl.uint32, bitcast=True)
    shift = (first % 4 * 8).to(tl.uint32)
    return (low >> shift | high << 1 << (31 - shift)).to(tl.int32, bitcast=True)


class _Plan:
    def run(
        self, x: Tensor, indptr: Tensor, out: Tensor, byte_indptr: Tensor, bitorder: str
    ) -> None:
        segments, total_bytes = len(indptr) - 1, len(out)
        launch(
            _byte_starts,
            (1,),
            x.device,
            indptr,
            byte_indptr,
            segments,
            BLOCK=BYTES.block,
            num_warps=BYTES.warps,
        )
        if segments == 0:
            out.zero_()
            return
        launch(
            _segment_packbits,
            (cdiv(total_bytes, BYTES.block),),
            x.device,
            x,
            indptr, byte_indptr,
            out,
            len(x), segments, total_bytes,
            STEPS=segments.bit_length(), BIG=bitorder == "big", ALIGNED=x.data_ptr() % 4 == 0,
            BLOCK=BYTES.block,
            num_warps=BYTES.warps,
        )  # fmt: skip


class _SegmentPackbits:
    def plan(self, problem: Any) -> _Plan:
        return _Plan()


segment_packbits = _SegmentPackbits()
