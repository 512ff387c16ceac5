"""From what a user gives ``plan()`` to a checked :class:`AttentionBatch`, as backends get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from attnhub.attn.kv import (
    BlockSparse,
    BlockSparseKV,
    KVLayout,
    KVMetadata,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    VariableBlockKV,
    VariableBlocks,
)
from attnhub.core import check, metadata

_EXPECTED = {
    Paged: PagedKV,
    Ragged: RaggedKV,
    BlockSparse: BlockSparseKV,
    VariableBlocks: VariableBlockKV,
}


@dataclass(slots=True, kw_only=True)
class AttentionBatch:
    """One batch's metadata, checked. Tensors lie where the user put them (host or device).

    ``qo_lens`` and ``kv_lens`` are lists when they are known on the host, else None. ``mask`` is a
    flat bool tensor (requests end to end, row-major) or packed uint8; see ``mask_packed``.
    """

    batch: int
    qo_indptr: Tensor
    kv: KVMetadata
    qo_lens: list[int] | None = None
    kv_lens: list[int] | None = None
    max_qo_len: int | None = None
    max_kv_len: int | None = None
    mask: Tensor | None = None
    mask_packed: bool = False
    q_offset: Tensor | None = None
    k_offset: Tensor | None = None
    params: Mapping[str, Tensor | float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int | None:
        """Query rows of the batch, if known on the host."""
        return None if self.qo_lens is None else sum(self.qo_lens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Per-request positions for fused RoPE, int32 ``[batch]`` each or None."""

    q: Tensor | None = None
    k: Tensor | None = None


def build(
    qo_indptr: Tensor,
    kv: KVMetadata,
    layout: KVLayout,
    *,
    mask: Tensor | Sequence[Tensor] | None = None,
    offsets: Offsets | None = None,
    lengths: tuple[int | None, int | None] = (None, None),
    num_kv_heads: int,
    validate: bool = False,
) -> AttentionBatch:
    """Check everything ``plan()`` was given and put it into one object.

    Raises:
        InvalidArgument: with the tensor, the value found, and what it should be.
    """
    expected = _EXPECTED[type(layout)]
    if not isinstance(kv, expected):
        check.fail(
            f"kv metadata is a {type(kv).__name__}, but kv={layout} needs {expected.__name__}"
        )
    metadata.index_tensor(qo_indptr, "qo_indptr", None)
    if not qo_indptr.numel():
        check.fail("qo_indptr is empty, needs [batch + 1] with a leading 0")
    batch = AttentionBatch(batch=qo_indptr.numel() - 1, qo_indptr=qo_indptr, kv=kv)
    host = metadata.host_copy(qo_indptr, validate=validate)
    if host is not None:
        batch.qo_lens = _lengths(metadata.indptr_values(host, "qo_indptr"))
    _CHECKS[expected](batch, layout, num_kv_heads, validate=validate)
    _set_bounds(batch, lengths)
    offsets = offsets or Offsets()
    for name, x in (("q_offset", offsets.q), ("k_offset", offsets.k)):
        if x is not None:
            metadata.index_tensor(x, name, batch.batch)
            setattr(batch, name, x)
    if mask is not None:
        _set_mask(batch, mask)
    return batch


def _lengths(indptr: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(indptr)]


def _set_bounds(batch: AttentionBatch, given: tuple[int | None, int | None]) -> None:
    for name, lens, bound in (
        ("max_qo_len", batch.qo_lens, given[0]),
        ("max_kv_len", batch.kv_lens, given[1]),
    ):
        longest = max(lens, default=0) if lens is not None else None
        if bound is not None and longest is not None and longest > bound:
            check.fail(f"{name}={bound} but the longest request has {longest}; raise {name}")
        setattr(batch, name, bound if longest is None else longest)


def _paged(batch: AttentionBatch, layout: Paged, _: int, *, validate: bool) -> None:
    kv: PagedKV = batch.kv  # type: ignore[assignment]
    metadata.index_tensor(kv.indptr, "indptr", batch.batch + 1)
    metadata.index_tensor(kv.indices, "indices", None)
    metadata.index_tensor(kv.last_page_len, "last_page_len", batch.batch)
    host_indptr = metadata.host_copy(kv.indptr, validate=validate)
    host_last = metadata.host_copy(kv.last_page_len, validate=validate)
    host_indices = metadata.host_copy(kv.indices, validate=validate)
    if host_indices is not None:
        metadata.in_range(host_indices, "indices", 0, None, "page ids")
    if host_indptr is None or host_last is None:
        return
    pages = _lengths(metadata.indptr_values(host_indptr, "indptr"))
    if sum(pages) > kv.indices.numel():
        check.fail(
            f"indptr ends at {sum(pages)} but indices has {kv.indices.numel()} page ids; "
            "give one id for every page"
        )
    size, last = layout.page_size, host_last.tolist()
    for b, (n, tokens) in enumerate(zip(pages, last, strict=True)):
        low = 1 if n else 0
        if not low <= tokens <= size:
            check.fail(
                f"last_page_len[{b}] is {tokens}, needs {low} to page_size={size} "
                f"for a request of {n} pages"
            )
    batch.kv_lens = [(n - 1) * size + t if n else 0 for n, t in zip(pages, last, strict=True)]


def _ragged(batch: AttentionBatch, layout: KVLayout, _: int, *, validate: bool) -> None:
    kv: RaggedKV = batch.kv  # type: ignore[assignment]
    metadata.index_tensor(kv.indptr, "indptr", batch.batch + 1)
    host = metadata.host_copy(kv.indptr, validate=validate)
    if host is not None:
        batch.kv_lens = _lengths(metadata.indptr_values(host, "indptr"))


def _block_sparse(
    batch: AttentionBatch, layout: BlockSparse, heads: int, *, validate: bool
) -> None:
    kv: BlockSparseKV = batch.kv  # type: ignore[assignment]
    _ragged(batch, layout, heads, validate=validate)
    metadata.index_tensor(kv.block_indptr, "block_indptr", None)
    metadata.index_tensor(kv.block_indices, "block_indices", None)
    if kv.block_mask is not None:
        check.dtype(kv.block_mask, "block_mask", (torch.bool,))
        check.shape(kv.block_mask, "block_mask", (kv.block_indices.numel(), layout.r, layout.c))
    indptr = metadata.host_copy(kv.block_indptr, validate=validate)
    indices = metadata.host_copy(kv.block_indices, validate=validate)
    if indptr is None or batch.qo_lens is None or batch.kv_lens is None:
        return
    counts = _lengths(metadata.indptr_values(indptr, "block_indptr"))
    rows = [-(-n // layout.r) for n in batch.qo_lens]
    if len(counts) != sum(rows):
        check.fail(
            f"block_indptr has {len(counts)} block rows, needs {sum(rows)} "
            f"(ceil(qo_len / {layout.r}) summed over the requests)"
        )
    if sum(counts) != kv.block_indices.numel():
        check.fail(
            f"block_indptr ends at {sum(counts)}, but block_indices has "
            f"{kv.block_indices.numel()} entries"
        )
    if indices is None:
        return
    start = row = 0
    for b, n in enumerate(rows):
        stop = start + sum(counts[row : row + n])
        blocks = -(-batch.kv_lens[b] // layout.c)
        what = f"key blocks of request {b}"
        metadata.in_range(indices[start:stop], "block_indices", 0, blocks, what)
        start, row = stop, row + n


def _variable(batch: AttentionBatch, layout: KVLayout, heads: int, *, validate: bool) -> None:
    kv: VariableBlockKV = batch.kv  # type: ignore[assignment]
    if batch.batch != 1:
        check.fail(f"variable blocks take one request, qo_indptr has {batch.batch}")
    check.dtype(kv.block_map, "block_map", (torch.bool,))
    check.shape(kv.block_map, "block_map", (heads, "MB", "NB"))
    for name, x, n in (
        ("row_sizes", kv.row_sizes, kv.block_map.shape[1]),
        ("col_sizes", kv.col_sizes, kv.block_map.shape[2]),
    ):
        check.dtype(x, name, (torch.int32,))
        check.shape(x, name, (heads, n))
        host = metadata.host_copy(x, validate=validate)
        if host is None:
            continue
        if (host < 0).any():
            check.fail(f"{name} has negative sizes; needs >= 0")
        sums = host.sum(1).tolist()
        if len(set(sums)) > 1:
            check.fail(f"{name} sums to {sums} over the heads; every head must cover all tokens")
        if name == "col_sizes":
            batch.kv_lens = sums[:1]
        elif batch.qo_lens is not None and sums[:1] != batch.qo_lens:
            check.fail(f"row_sizes sums to {sums[0]}, but the request has {batch.qo_lens[0]} rows")


_CHECKS: dict[type[KVMetadata], Callable[..., None]] = {
    PagedKV: _paged,
    RaggedKV: _ragged,
    BlockSparseKV: _block_sparse,
    VariableBlockKV: _variable,
}


def _set_mask(batch: AttentionBatch, mask: Tensor | Sequence[Tensor]) -> None:
    if not isinstance(mask, Tensor):
        mask = _flatten(batch, mask)
    check.dtype(mask, "mask", (torch.bool, torch.uint8))
    if mask.dim() != 1:
        check.shape(mask, "mask", ("sum(qo_len * kv_len)",))
    batch.mask, batch.mask_packed = mask, mask.dtype == torch.uint8
    if batch.qo_lens is None or batch.kv_lens is None:
        return
    sizes = [n * m for n, m in zip(batch.qo_lens, batch.kv_lens, strict=True)]
    if batch.mask_packed:
        sizes = [-(-s // 8) for s in sizes]
    if mask.numel() != sum(sizes):
        what = "packed bytes, each request padded to a byte" if batch.mask_packed else "bools"
        check.fail(
            f"mask has {mask.numel()} elements, needs {sum(sizes)} {what} "
            "(qo_len * kv_len summed over the requests)"
        )


def _flatten(batch: AttentionBatch, masks: Sequence[Tensor]) -> Tensor:
    if len(masks) != batch.batch:
        check.fail(f"mask lists {len(masks)} tensors, needs one for each of {batch.batch} requests")
    if not masks:
        return torch.zeros(0, dtype=torch.bool)
    for b, m in enumerate(masks):
        check.dtype(m, f"mask[{b}]", (torch.bool,))
        if batch.qo_lens is not None and batch.kv_lens is not None:
            check.shape(m, f"mask[{b}]", (batch.qo_lens[b], batch.kv_lens[b]))
    return torch.cat([m.reshape(-1) for m in masks])
