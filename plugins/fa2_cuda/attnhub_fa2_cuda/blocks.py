"""Block-sparse K and V as the kernel reads them: each row of blocks is a request with pages.

A block of keys is a page that begins at any row, so the page table names rows. Blocks are sorted
within their row: the one that the end of the keys cuts short, if there is one, is then the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.plugin import AttentionBatch
from attnhub_fa2_cuda.masks import mask_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPages:
    """What the kernel takes instead of the batch's own metadata. ``mask`` may be None."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    last_page_len: Tensor
    indices: Tensor
    mask: Tensor | None
    mask_offsets: Tensor | None


def pages_of(
    batch: AttentionBatch, qo_indptr: Tensor, block: tuple[int, int], device: torch.device
) -> BlockPages:
    """The pages of a batch, made on the device without waiting for it.

    Args:
        batch: of block-sparse K and V.
        qo_indptr: its queries, on the device.
        block: queries and keys of a block.
        device: where the kernel runs.
    """
    kv: Any = batch.kv
    kv_indptr, block_indptr, block_ids = (
        x.to(device, non_blocking=True) for x in (kv.indptr, kv.block_indptr, kv.block_indices)
    )
    rows = _Rows(qo_indptr, kv_indptr, block_indptr, block_ids, block)
    mask = offsets = None
    if kv.block_mask is not None or batch.mask is not None:
        mask, offsets = rows.mask(batch, kv.block_mask)
    return BlockPages(
        qo_indptr=rows.qo_indptr.int(),
        kv_indptr=block_indptr,
        last_page_len=rows.last.int(),
        indices=rows.first_keys.int(),
        mask=mask,
        mask_offsets=offsets,
    )


class _Rows:
    """The rows of blocks of all requests, end to end, and their blocks in order."""

    def __init__(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        block_indptr: Tensor,
        block_ids: Tensor,
        block: tuple[int, int],
    ) -> None:
        r, c = self._block = block
        device = qo_indptr.device
        self._indptr = block_indptr.long()
        self._qo, self._kv = qo_indptr.long(), kv_indptr.long()
        counts = (self._qo.diff() + r - 1) // r
        ends = counts.cumsum(0)
        row = torch.arange(block_indptr.numel() - 1, device=device)
        #: of each row: its request, and which of that request's rows it is
        self._request = torch.searchsorted(ends, row, right=True)
        self._place = row - (ends - counts)[self._request]
        begins = self._qo[self._request] + self._place * r
        self.qo_indptr = torch.cat([begins, self._qo[-1:]])
        #: of each block: its row, and what it was among the blocks that were given
        lengths = self._indptr.diff()
        count = block_ids.numel()
        self._row = torch.repeat_interleave(row, lengths, output_size=count)
        self._order = torch.argsort(self._row << 32 | block_ids.long())
        self._ids = block_ids.long()[self._order]
        request = self._request[self._row]
        self.first_keys = self._kv[request] + self._ids * c
        #: keys of each row's last block, and of all of them
        self.last = torch.zeros_like(row)
        if count:
            last_id = self._ids[(self._indptr[1:] - 1).clamp(min=0)]
            keys = self._kv.diff()[self._request] - last_id * c
            self.last = torch.where(lengths > 0, keys.clamp(max=c), 0)
        self._kv_lens = torch.where(lengths > 0, (lengths - 1) * c + self.last, 0)

    def mask(self, batch: AttentionBatch, block_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """A byte for each query and key of the rows, and where the bytes of each row begin."""
        r, c = self._block
        device, count = self._ids.device, self._ids.numel()
        qo_lens = self.qo_indptr.diff()
        sizes = qo_lens * self._kv_lens
        offsets = sizes.cumsum(0) - sizes
        query = torch.arange(r, device=device).view(1, r, 1)
        slot = torch.arange(c, device=device).view(1, 1, c)
        row = self._row.view(-1, 1, 1)
        key = (torch.arange(count, device=device) - self._indptr[self._row]).view(
            -1, 1, 1
        ) * c + slot
        exists = (query < qo_lens[row]) & (key < self._kv_lens[row])
        seen = torch.ones(count, r, c, dtype=torch.bool, device=device)
        if block_mask is not None:
            seen = block_mask.to(device, non_blocking=True)[self._order]
        if batch.mask is not None:
            seen = seen & self._custom(batch, query, slot)
        # NOTE: no selection by `exists`, as the host would have to wait for its size: what is no
        # pair goes to one byte behind.
        most = count * r * c
        to = torch.where(exists, offsets[row] + query * self._kv_lens[row] + key, most)
        mask = torch.zeros(most + 1, dtype=torch.uint8, device=device)
        return mask.scatter_(0, to.view(-1), seen.to(torch.uint8).view(-1)), offsets

    def _custom(self, batch: AttentionBatch, query: Tensor, slot: Tensor) -> Tensor:
        """What the mask of the batch says of the pairs of each block."""
        assert batch.mask is not None
        r, c = self._block
        mask = batch.mask.to(self._ids.device, non_blocking=True).view(torch.uint8)
        qo_lens, kv_lens = self._qo.diff(), self._kv.diff()
        offsets = mask_offsets(qo_lens, kv_lens, is_packed=batch.mask_packed)
        request = self._request[self._row]
        first_query, first_key = self._place[self._row] * r, self._ids * c
        pair = (first_query.view(-1, 1, 1) + query) * kv_lens[request].view(-1, 1, 1)
        pair = pair + first_key.view(-1, 1, 1) + slot
        begin = offsets[request].view(-1, 1, 1)
        last = max(mask.numel() - 1, 0)
        if not batch.mask_packed:
            return mask[(begin + pair).clamp(max=last)].bool()
        return (mask[(begin + pair // 8).clamp(max=last)] >> (pair % 8) & 1).bool()
