"""Where each request's part of a custom mask begins."""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.plugin import AttentionBatch, Staging


def mask_offsets(qo_lens: Tensor, kv_lens: Tensor, *, is_packed: bool) -> Tensor:
    """The byte where the part of each request begins; packed ones are padded to a byte."""
    sizes = qo_lens * kv_lens
    if is_packed:
        sizes = (sizes + 7) // 8
    return sizes.cumsum(0) - sizes


class MaskOffsets:
    """The byte offsets of the requests' masks on the device, and the mask itself.

    Args:
        staging: for what lies on the host.
        device: where both are wanted.
        page_size: keys of a page; 1 where keys are not in pages.
        is_packed: eight elements a byte, each request padded to a byte.
        max_batch: room for so many requests that never moves, as a CUDA graph wants it.
    """

    def __init__(
        self,
        staging: Staging,
        device: torch.device,
        *,
        page_size: int,
        is_packed: bool,
        max_batch: int | None,
    ) -> None:
        self._staging = staging
        self._page_size = page_size
        self._is_packed = is_packed
        self._fixed = None
        if max_batch is not None:
            self._fixed = torch.empty(max_batch, dtype=torch.int64, device=device)

    def update(
        self,
        batch: AttentionBatch,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        last_page_len: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The mask and the offsets of a batch, whose other metadata lie on the device."""
        assert batch.mask is not None
        qo_lens, kv_lens = qo_indptr.diff().long(), kv_indptr.diff().long()
        if last_page_len is not None:
            keys = (kv_lens - 1) * self._page_size + last_page_len
            kv_lens = torch.where(kv_lens > 0, keys, 0)
        offsets = mask_offsets(qo_lens, kv_lens, is_packed=self._is_packed)
        if self._fixed is not None:
            offsets = self._fixed[: offsets.numel()].copy_(offsets)
        return self._staging.on_device(batch.mask.view(torch.uint8)), offsets
