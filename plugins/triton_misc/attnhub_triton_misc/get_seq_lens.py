"""Number of tokens of each request of a page table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from attnhub.plugin import Problem
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.settings import EACH


@triton.jit
def _seq_lens(
    indptr_ptr, last_page_len_ptr,
    out_ptr,
    batch, page_size,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``(pages - 1) * page_size + last_page_len``, 0 where there are no pages."""
    overlap(PDL)
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = request < batch
    start = tl.load(indptr_ptr + request, mask=live, other=0)
    end = tl.load(indptr_ptr + request + 1, mask=live, other=0)
    last = tl.load(last_page_len_ptr + request, mask=live, other=0)
    length = (end - start - 1) * page_size + last
    tl.store(out_ptr + request, tl.where(end > start, length, 0), mask=live)


class _Plan:
    def run(self, indptr: Tensor, last_page_len: Tensor, out: Tensor, page_size: int) -> None:
        batch = len(out)
        launch(
            _seq_lens,
            (cdiv(batch, EACH.block),),
            out.device,
            indptr, last_page_len,
            out,
            batch, page_size,
            BLOCK=EACH.block,
            num_warps=EACH.warps,
        )  # fmt: skip


class _GetSeqLens:
    def plan(self, problem: Problem) -> _Plan:
        return _Plan()


get_seq_lens = _GetSeqLens()
