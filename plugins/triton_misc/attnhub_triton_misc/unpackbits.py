"""Booleans out of bytes, each of which has eight."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.bits import bytes_of, unpack, words_of
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.settings import BYTES


@triton.jit
def _unpackbits(
    packed_ptr,
    out_ptr,
    count,
    BIG: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[8 i + j] = packed[i] >> j & 1``, or ``>> 7 - j``."""
    overlap(PDL)
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = 2 * byte[:, None] + tl.arange(0, 2)[None, :]
    words = unpack(tl.load(packed_ptr + byte, mask=8 * byte < count, other=0), BIG)
    if ALIGNED and 8 * BLOCK * (tl.program_id(0).to(tl.int64) + 1) <= count:
        tl.store(words_of(out_ptr) + word, words)
    else:
        for j in tl.static_range(4):
            x = (words >> 8 * j & 1).to(tl.uint8)
            tl.store(bytes_of(out_ptr) + 4 * word + j, x, mask=4 * word + j < count)


class _Plan:
    def run(self, packed: Tensor, out: Tensor, bitorder: str) -> None:
        count = len(out)
        launch(
            _unpackbits,
            (cdiv(count, 8 * BYTES.block),),
            out.device,
            packed,
            out,
            count,
            BIG=bitorder == "big", ALIGNED=out.data_ptr() % 8 == 0, BLOCK=BYTES.block,
            num_warps=BYTES.warps,
        )  # fmt: skip


class _Unpackbits:
    def plan(self, problem: Any) -> _Plan:
        return _Plan()


unpackbits = _Unpackbits()
