"""Request and position of every appended token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from attnhub.plugin import Problem
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.search import ends_until
from attnhub_triton_misc.settings import EACH


@triton.jit
def _batch_indices_positions(
    indptr_ptr, lengths_ptr,
    batch_indices_ptr, positions_ptr,
    batch, tokens,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``position = length[request] - indptr[request + 1] + token``; -1 behind the last request."""
    overlap(PDL)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens
    request = ends_until(indptr_ptr, batch, token, STEPS)
    owned = request < batch
    end = tl.load(indptr_ptr + request + 1, mask=owned, other=0)
    length = tl.load(lengths_ptr + request, mask=owned, other=0)
    tl.store(batch_indices_ptr + token, tl.where(owned, request, -1), mask=live)
    tl.store(positions_ptr + token, tl.where(owned, length - end + token, -1), mask=live)


class _Plan:
    def run(
        self, append_indptr: Tensor, seq_lens: Tensor, batch_indices: Tensor, positions: Tensor
    ) -> None:
        batch, tokens = seq_lens.shape[0], positions.shape[0]
        launch(
            _batch_indices_positions,
            (cdiv(tokens, EACH.block),),
            positions.device,
            append_indptr, seq_lens,
            batch_indices, positions,
            batch, tokens,
            STEPS=batch.bit_length(), BLOCK=EACH.block,
            num_warps=EACH.warps,
        )  # fmt: skip


class _GetBatchIndicesPositions:
    def plan(self, problem: Problem) -> _Plan:
        return _Plan()


get_batch_indices_positions = _GetBatchIndicesPositions()
