"""Block-sparse K and V as the kernel reads them: each row of blocks is a request with pages.

A block of keys is a page that begins at any row, so the page table names rows. Blocks are sorted
within their row: the one that the end of the keys cuts short, if there is one, is then the last,
and those that are named twice are neighbours. All is done on the device, which nothing waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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


class Rows:
    """The rows of blocks of all requests, end to end, and their blocks in order.

    Args:
        qo_indptr, kv_indptr: of the requests, on the device like the others.
        block_indptr, block_ids: of the rows of blocks.
        block: queries and keys of a block.
    """

    def __init__(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        block_indptr: Tensor,
        block_ids: Tensor,
        *,
        block: tuple[int, int],
    ) -> None:
        r, c = self._block = block
        device, count = qo_indptr.device, block_ids.numel()
        self._qo, self._kv = qo_indptr.long(), kv_indptr.long()
        row = torch.arange(block_indptr.numel() - 1, device=device)
        rows_of_request = (self._qo.diff() + r - 1) // r
        ends = rows_of_request.cumsum(0)
        #: of each row: its request, and which of that request's rows it is
        self._request = torch.searchsorted(ends, row, right=True)
        self._place = row - (ends - rows_of_request)[self._request]
        begins = self._qo[self._request] + self._place * r
        self._qo_indptr = torch.cat([begins, self._qo[-1:]])

        #: of each block that was given: its row, in the order of rows and ids; where it stood
        self._row = torch.repeat_interleave(row, block_indptr.diff(), output_size=count)
        self._order = torch.argsort(self._row << 32 | block_ids.long())
        self._ids = block_ids.long()[self._order]
        #: which of the blocks that are left it is, once those named twice are one
        is_new = torch.ones(count, dtype=torch.bool, device=device)
        if count:
            same = (self._row[1:] == self._row[:-1]) & (self._ids[1:] == self._ids[:-1])
            is_new[1:] = ~same
        self._at = is_new.cumsum(0) - 1
        lengths = torch.zeros_like(row).scatter_add_(0, self._row, is_new.long())
        self._indptr = torch.cat([row.new_zeros(1), lengths.cumsum(0)])

        last = torch.zeros_like(row)
        if count:
            last_id = self._of_blocks(self._ids)[(self._indptr[1:] - 1).clamp(min=0)]
            last = (self._kv.diff()[self._request] - last_id * c).clamp(max=c)
        self._last = torch.where(lengths > 0, last, 0)
        self._kv_lens = torch.where(lengths > 0, (lengths - 1) * c + self._last, 0)

    def _of_blocks(self, given: Tensor) -> Tensor:
        """Of the blocks that are left, what is given of each that was named."""
        return torch.zeros_like(given).scatter_(0, self._at, given)

    def pages(
        self, block_mask: Tensor | None, custom: Tensor | None, *, is_packed: bool
    ) -> BlockPages:
        """The pages of all rows.

        Args:
            block_mask: bool ``[blocks, r, c]`` or None, on the device.
            custom: the mask of the batch or None, on the device.
            is_packed: whether that is bits.
        """
        first_keys = self._kv[self._request[self._row]] + self._ids * self._block[1]
        mask = offsets = None
        if block_mask is not None or custom is not None:
            mask, offsets = self._mask(block_mask, custom, is_packed=is_packed)
        return BlockPages(
            qo_indptr=self._qo_indptr.int(),
            kv_indptr=self._indptr.int(),
            last_page_len=self._last.int(),
            indices=self._of_blocks(first_keys).int(),
            mask=mask,
            mask_offsets=offsets,
        )

    def _mask(
        self, block_mask: Tensor | None, custom: Tensor | None, *, is_packed: bool
    ) -> tuple[Tensor, Tensor]:
        """A byte for each query and key of the rows, and where the bytes of each row begin."""
        r, c = self._block
        device, count = self._ids.device, self._ids.numel()
        qo_lens = self._qo_indptr.diff()
        offsets = mask_offsets(qo_lens, self._kv_lens, is_packed=False)
        query = torch.arange(r, device=device).view(1, r, 1)
        slot = torch.arange(c, device=device).view(1, 1, c)
        row = self._row.view(-1, 1, 1)
        key = (self._at - self._indptr[self._row]).view(-1, 1, 1) * c + slot
        exists = (query < qo_lens[row]) & (key < self._kv_lens[row])
        seen = torch.ones(count, r, c, dtype=torch.bool, device=device)
        if block_mask is not None:
            seen = block_mask[self._order]
        if custom is not None:
            seen = seen & self._custom(custom.view(torch.uint8), query, slot, is_packed=is_packed)
        # NOTE: no selection by `exists`, as the host would have to wait for its size: what is no
        # pair goes to one byte behind. Of a block that is named twice each may show a pair.
        most = count * r * c
        to = torch.where(exists, offsets[row] + query * self._kv_lens[row] + key, most)
        mask = torch.zeros(most + 1, dtype=torch.uint8, device=device)
        shown = seen.to(torch.uint8).reshape(-1)
        return mask.scatter_reduce_(0, to.view(-1), shown, reduce="amax"), offsets

    def _custom(self, mask: Tensor, query: Tensor, slot: Tensor, *, is_packed: bool) -> Tensor:
        """What the mask of the batch says of the pairs of each block."""
        r, c = self._block
        qo_lens, kv_lens = self._qo.diff(), self._kv.diff()
        request = self._request[self._row]
        first_query, first_key = self._place[self._row] * r, self._ids * c
        pair = (first_query.view(-1, 1, 1) + query) * kv_lens[request].view(-1, 1, 1)
        pair = pair + first_key.view(-1, 1, 1) + slot
        begin = mask_offsets(qo_lens, kv_lens, is_packed=is_packed)[request].view(-1, 1, 1)
        last = max(mask.numel() - 1, 0)
        if not is_packed:
            return mask[(begin + pair).clamp(max=last)].bool()
        return (mask[(begin + pair // 8).clamp(max=last)] >> (pair % 8) & 1).bool()
