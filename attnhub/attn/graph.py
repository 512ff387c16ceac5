"""Fixed buffers for CUDA graphs: ``plan()`` changes their contents, never their addresses.

A graph-mode batch always has ``max_batch`` requests; those past the real ones are empty, so their
rows are written as zeros with LSE -inf.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnhub.attn.batch import AttentionBatch
from attnhub.attn.kv import GraphLimits, KVLayout, KVMetadata, Paged, PagedKV, Ragged, RaggedKV
from attnhub.core import check
from attnhub.core.staging import Staging


class GraphBuffers:
    """Metadata of one ``BatchAttention`` or ``BatchMLA`` at fixed addresses."""

    def __init__(self, limits: GraphLimits, layout: KVLayout, device: torch.device) -> None:
        if not isinstance(layout, (Paged, Ragged)):
            check.fail(f"graph=... takes kv=Paged(...) or Ragged(...), got {layout}")

        def ints(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.int32, device=device)

        self.limits = limits
        self._staging = Staging(device)
        self._qo_indptr = ints(limits.max_batch + 1)
        self._kv: KVMetadata = RaggedKV(ints(limits.max_batch + 1))
        if isinstance(layout, Paged):
            pages, last = ints(limits.max_pages), ints(limits.max_batch)
            self._kv = PagedKV(ints(limits.max_batch + 1), pages, last)
        self._mask = torch.zeros(limits.max_mask_bytes, dtype=torch.uint8, device=device)
        self._offsets = [ints(limits.max_batch), ints(limits.max_batch)] if limits.offsets else []

    def fill(self, batch: AttentionBatch) -> AttentionBatch:
        """Copy a checked batch in, padded with empty requests; return it at the fixed addresses."""
        self._indptr(self._qo_indptr, batch.qo_indptr)
        if isinstance(self._kv, PagedKV) and isinstance(batch.kv, PagedKV):
            self._indptr(self._kv.indptr, batch.kv.indptr)
            self._prefix(self._kv.indices, batch.kv.indices)
            self._prefix(self._kv.last_page_len, batch.kv.last_page_len)
            self._kv.last_page_len[batch.batch :].zero_()
        elif isinstance(self._kv, RaggedKV) and isinstance(batch.kv, RaggedKV):
            self._indptr(self._kv.indptr, batch.kv.indptr)
        if batch.mask is not None:
            self._prefix(self._mask, batch.mask)
        q_offset, k_offset = self._fill_offsets(batch)
        most = self.limits.max_batch
        return replace(
            batch,
            batch=most,
            qo_indptr=self._qo_indptr,
            kv=self._kv,
            qo_lens=None if batch.qo_lens is None else batch.qo_lens.padded(most),
            kv_lens=None if batch.kv_lens is None else batch.kv_lens.padded(most),
            max_qo_len=_either(batch.max_qo_len, self.limits.max_qo_len),
            max_kv_len=_either(batch.max_kv_len, self.limits.max_kv_len),
            mask=None if batch.mask is None else self._mask,
            q_offset=q_offset,
            k_offset=k_offset,
        )

    def empty(self) -> AttentionBatch:
        """A batch of no requests at the fixed addresses, to choose a backend with."""
        return AttentionBatch(
            batch=self.limits.max_batch,
            qo_indptr=self._qo_indptr,
            kv=self._kv,
            mask=self._mask if self.limits.max_mask_bytes else None,
            mask_packed=self.limits.max_mask_bytes > 0,
            max_qo_len=self.limits.max_qo_len,
            max_kv_len=self.limits.max_kv_len,
            q_offset=self._offsets[0] if self._offsets else None,
            k_offset=self._offsets[1] if self._offsets else None,
        )

    def _fill_offsets(self, batch: AttentionBatch) -> tuple[Tensor | None, Tensor | None]:
        if not self._offsets:
            return None, None
        q_offset, k_offset = self._offsets
        for buffer, source in ((q_offset, batch.q_offset), (k_offset, batch.k_offset)):
            assert source is not None  # checked above
            self._prefix(buffer, source)
        return q_offset, k_offset

    def _prefix(self, buffer: Tensor, source: Tensor) -> None:
        self._staging.copy(buffer[: source.numel()], source)

    def _indptr(self, buffer: Tensor, source: Tensor) -> None:
        self._prefix(buffer, source)
        n = source.numel()
        if n < buffer.numel():
            buffer[n:] = buffer[n - 1]

    def check(self, batch: AttentionBatch) -> None:
        """Refuse a batch that the buffers cannot take, before anything is overwritten.

        Raises:
            InvalidArgument: the batch passes one of the limits, or has other kinds of metadata.
        """
        limits = self.limits
        pages = batch.kv.indices.numel() if isinstance(batch.kv, PagedKV) else 0
        mask_bytes = 0 if batch.mask is None else batch.mask.numel()
        for name, value, limit in (
            ("batch", batch.batch, limits.max_batch),
            ("qo_tokens", batch.num_tokens, limits.max_qo_tokens),
            ("pages", pages, limits.max_pages),
            ("mask_bytes", mask_bytes, limits.max_mask_bytes),
            ("qo_len", batch.max_qo_len, limits.max_qo_len),
            ("kv_len", batch.max_kv_len, limits.max_kv_len),
        ):
            if value is not None and limit is not None and value > limit:
                check.fail(f"{name} is {value}, past GraphLimits(max_{name}={limit}); raise it")
        if batch.mask is not None and not batch.mask_packed:
            check.fail("graph mode takes a packed mask; use attnhub.quantization.segment_packbits")
        if batch.mask is not None and not limits.max_mask_bytes:
            check.fail("this graph was made without a mask; give GraphLimits(max_mask_bytes=...)")
        # A captured graph goes on reading what it was captured with, so all plans have the same.
        if limits.max_mask_bytes and batch.mask is None:
            check.fail("GraphLimits(max_mask_bytes=...) captures a mask: give one to every plan()")
        given = (batch.q_offset is not None, batch.k_offset is not None)
        if given != (limits.offsets, limits.offsets):
            need = "both to every plan()" if limits.offsets else "GraphLimits(offsets=True)"
            check.fail(f"graph mode with offsets={limits.offsets}: q_offset/k_offset need {need}")


def _either(known: int | None, limit: int | None) -> int | None:
    return limit if known is None else known
