"""Eight booleans into a byte."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.bits import gather, pack, words_of
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.settings import BYTES


@triton.jit
def _packbits(
    x_ptr,
    out_ptr,
    count,
    BIG: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[i] = sum(x[8 i + j] << j)``, or ``<< 7 - j``; 0 for what is behind the last boolean."""
    overlap(PDL)
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = 2 * byte[:, None] + tl.arange(0, 2)[None, :]
    if ALIGNED and 8 * BLOCK * (tl.program_id(0).to(tl.int64) + 1) <= count:
        tl.store(out_ptr + byte, pack(tl.load(words_of(x_ptr) + word), BIG))
    else:
        words = gather(x_ptr, 4 * word, count)
        tl.store(out_ptr + byte, pack(words, BIG), mask=8 * byte < count)


class _Plan:
    def run(self, x: Tensor, out: Tensor, bitorder: str) -> None:
        launch(
            _packbits,
            (cdiv(len(out), BYTES.block),),
            x.device,
            x,
            out,
            len(x),
            BIG=bitorder == "big", ALIGNED=x.data_ptr() % 8 == 0, BLOCK=BYTES.block,
            num_warps=BYTES.warps,
        )  # fmt: skip


class _Packbits:
    def plan(self, problem: Any) -> _Plan:
        return _Plan()


packbits = _Packbits()
