"""From what a user gives ``plan()`` to a checked :class:`AttentionBatch`, as backends get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
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
    check_bounds,
)
from attnhub.attn.lengths import FEW, Lengths
from attnhub.core import check, metadata
from attnhub.core.problem import Extent

_EXPECTED = {
    Paged: PagedKV,
    Ragged: RaggedKV,
    BlockSparse: BlockSparseKV,
    VariableBlocks: VariableBlockKV,
}

#: Of each kind of K/V metadata the fields that say how long things are; without them on the host
#: nothing is known there. Page ids, block ids and masks are looked up, wherever they lie.
_LENGTHS: Mapping[type[KVMetadata], tuple[str, ...]] = {
    PagedKV: ("indptr", "last_page_len"),
    RaggedKV: ("indptr",),
    BlockSparseKV: ("indptr", "block_indptr"),
    VariableBlockKV: ("row_sizes", "col_sizes"),
}


@dataclass(slots=True, kw_only=True)
class AttentionBatch:
    """One batch's metadata, checked. Each tensor lies on the host or on the attention's device.

    ``qo_lens`` and ``kv_lens`` are None unless they are known on the host. ``mask`` is a
    flat bool tensor (requests end to end, row-major) or packed uint8; see ``mask_packed``.
    ``max_page`` is the highest page id in use, if known on the host. ``extent`` has the sizes that
    the backend was chosen by; one plan serves batches of any extent.
    """

    batch: int
    qo_indptr: Tensor
    kv: KVMetadata
    qo_lens: Lengths | None = None
    kv_lens: Lengths | None = None
    max_qo_len: int | None = None
    max_kv_len: int | None = None
    max_page: int | None = None
    mask: Tensor | None = None
    mask_packed: bool = False
    q_offset: Tensor | None = None
    k_offset: Tensor | None = None
    params: Mapping[str, Tensor | float] = field(default_factory=dict)
    extent: Extent = field(default_factory=Extent)

    @property
    def num_tokens(self) -> int | None:
        """Query rows of the batch, if known on the host."""
        return None if self.qo_lens is None else self.qo_lens.total

    @property
    def min_qo_len(self) -> int | None:
        """Queries of the shortest request, if known on the host."""
        return None if self.qo_lens is None else self.qo_lens.shortest

    @property
    def metadata(self) -> str:
        """``"host"`` if every tensor of lengths lies there, else ``"device"``."""
        lengths = [getattr(self.kv, name) for name in _LENGTHS[type(self.kv)]]
        return "host" if all(x.is_cpu for x in (self.qo_indptr, *lengths)) else "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Per-request positions for fused RoPE, int32 ``[batch]`` each or None."""

    q: Tensor | None = None
    k: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """How a batch's tensors are taken over.

    Args:
        device: they lie there or on the host.
        validate: look at values on the device too (a synchronisation).
        copy: keep copies of what lies on the host: the caller may overwrite it after ``plan()``.
    """

    device: torch.device
    validate: bool = False
    copy: bool = True

    def index(self, x: Tensor, name: str, length: int | None) -> Tensor:
        """A checked 1-D int32 tensor, of ``length`` elements if that is known."""
        metadata.index_tensor(x, name, length)
        return self._keep(x, name)

    def array(
        self, x: Tensor, name: str, accepted: Sequence[torch.dtype], shape: Sequence[int | str]
    ) -> Tensor:
        """A checked contiguous tensor."""
        check.is_tensor(x, name)
        check.dtype(x, name, accepted)
        check.shape(x, name, shape)
        if not x.is_contiguous():
            check.fail(f"{name} is not contiguous; call {name}.contiguous()")
        return self._keep(x, name)

    def _keep(self, x: Tensor, name: str) -> Tensor:
        if x.is_cpu:
            return x.clone() if self.copy else x
        if x.device != self.device:
            check.fail(f"{name} is on {x.device}, needs the host or {self.device}; move it")
        return x

    def host(self, x: Tensor) -> Tensor | None:
        """The values of a tensor where they may be looked at, else None."""
        return metadata.host_copy(x, validate=self.validate)

    def lengths(self, indptr: Tensor, name: str) -> Lengths | None:
        """The differences of checked cumulative lengths, where they may be looked at."""
        host = self.host(indptr)
        if host is None:
            return None
        if host.numel() <= FEW:
            p = metadata.indptr_values(host, name)
            return Lengths([end - begin for begin, end in pairwise(p)], total=p[-1])
        metadata.check_indptr(host, name)
        starts = host.numpy()
        return Lengths(starts[1:] - starts[:-1], total=int(starts[-1]))


def build(
    qo_indptr: Tensor,
    kv: KVMetadata,
    layout: KVLayout,
    *,
    intake: Intake,
    num_kv_heads: int,
    mask: Tensor | Sequence[Tensor] | None = None,
    offsets: Offsets | None = None,
    lengths: tuple[int | None, int | None] = (None, None),
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
    qo_indptr = intake.index(qo_indptr, "qo_indptr", None)
    if not qo_indptr.numel():
        check.fail("qo_indptr is empty, needs [batch + 1] with a leading 0")
    batch = AttentionBatch(batch=qo_indptr.numel() - 1, qo_indptr=qo_indptr, kv=kv)
    batch.qo_lens = intake.lengths(qo_indptr, "qo_indptr")
    _TAKE[expected](batch, layout, num_kv_heads, intake)
    _set_bounds(batch, lengths)
    if offsets is not None:
        for name, x in (("q_offset", offsets.q), ("k_offset", offsets.k)):
            if x is not None:
                setattr(batch, name, intake.index(x, name, batch.batch))
    if mask is not None:
        _set_mask(batch, mask, intake)
    return batch


def _set_bounds(batch: AttentionBatch, given: tuple[int | None, int | None]) -> None:
    check_bounds(*given)
    for name, lens, bound in (
        ("max_qo_len", batch.qo_lens, given[0]),
        ("max_kv_len", batch.kv_lens, given[1]),
    ):
        most = None if lens is None else lens.longest
        if bound is not None and most is not None and most > bound:
            check.fail(f"{name}={bound} but the longest request has {most}; raise {name}")
        setattr(batch, name, bound if most is None else most)


def _paged(batch: AttentionBatch, layout: Paged, _: int, intake: Intake) -> None:
    given: PagedKV = batch.kv  # type: ignore[assignment]
    indptr = intake.index(given.indptr, "indptr", batch.batch + 1)
    indices = intake.index(given.indices, "indices", None)
    last_page_len = intake.index(given.last_page_len, "last_page_len", batch.batch)
    batch.kv = PagedKV(indptr, indices, last_page_len)
    pages = intake.lengths(indptr, "indptr")
    if pages is None:
        return
    count = pages.total
    if count > indices.numel():
        check.fail(
            f"indptr ends at {count} but indices has {indices.numel()} page ids; "
            "give one id for every page"
        )
    ids = intake.host(indices)
    if ids is not None and count:  # ids past the last page are nobody's
        used = ids.numpy()[:count]
        if used.min() < 0:
            metadata.in_range(ids[:count], "indices", 0, None, "page ids")
        batch.max_page = int(used.max())
    last = intake.host(last_page_len)
    if last is not None:
        batch.kv_lens = _paged_lens(pages, last, layout.page_size)


def _paged_lens(pages: Lengths, last: Tensor, size: int) -> Lengths:
    if len(pages) > FEW and pages.shortest > 0:
        tokens = last.numpy()
        if tokens.min() >= 1 and tokens.max() <= size:
            return Lengths((pages.values.astype(np.int64) - 1) * size + tokens)
    return Lengths(_checked_lens(pages.tolist(), last.tolist(), size))


def _checked_lens(pages: list[int], last: list[int], size: int) -> list[int]:
    usual = not pages or (0 not in pages and min(last) >= 1 and max(last) <= size)
    for b, (n, tokens) in enumerate(() if usual else zip(pages, last, strict=True)):
        low, high = (1, size) if n else (0, 0)
        if not low <= tokens <= high:
            accepted = f"1 to page_size={size}" if n else "0"
            check.fail(
                f"last_page_len[{b}] is {tokens}, needs {accepted} for a request of {n} pages"
            )
    return [(n - 1) * size + t if n else 0 for n, t in zip(pages, last, strict=True)]


def _ragged(batch: AttentionBatch, layout: KVLayout, _: int, intake: Intake) -> None:
    given: RaggedKV = batch.kv  # type: ignore[assignment]
    indptr = intake.index(given.indptr, "indptr", batch.batch + 1)
    batch.kv = RaggedKV(indptr)
    batch.kv_lens = intake.lengths(indptr, "indptr")


def _block_sparse(batch: AttentionBatch, layout: BlockSparse, heads: int, intake: Intake) -> None:
    kv: BlockSparseKV = batch.kv  # type: ignore[assignment]
    indptr = intake.index(kv.indptr, "indptr", batch.batch + 1)
    batch.kv_lens = intake.lengths(indptr, "indptr")
    block_indptr = intake.index(kv.block_indptr, "block_indptr", None)
    block_indices = intake.index(kv.block_indices, "block_indices", None)
    mask = kv.block_mask
    if mask is not None:
        shape = (block_indices.numel(), layout.r, layout.c)
        mask = intake.array(mask, "block_mask", (torch.bool,), shape)
    batch.kv = BlockSparseKV(indptr, block_indptr, block_indices, mask)
    counts = intake.lengths(block_indptr, "block_indptr")
    if counts is None or batch.qo_lens is None:
        return
    rows = [-(-n // layout.r) for n in batch.qo_lens]
    if len(counts) != sum(rows):
        check.fail(
            f"block_indptr has {len(counts)} block rows, needs {sum(rows)} "
            f"(ceil(qo_len / {layout.r}) summed over the requests)"
        )
    if sum(counts) != block_indices.numel():
        check.fail(
            f"block_indptr ends at {sum(counts)}, but block_indices has "
            f"{block_indices.numel()} entries"
        )
    found = intake.host(block_indices)
    if found is not None and batch.kv_lens is not None:
        _check_block_ids(found, counts, rows, [-(-n // layout.c) for n in batch.kv_lens])


def _check_block_ids(
    ids: Tensor, counts: Sequence[int], rows: list[int], blocks: list[int]
) -> None:
    """Each id against the number of key blocks of its request: one limit for every id, at once."""
    limits, per_row, per_id = (
        torch.tensor(list(x), dtype=torch.int64, device="cpu") for x in (blocks, rows, counts)
    )
    limits = limits.repeat_interleave(per_row).repeat_interleave(per_id)
    bad = (ids < 0) | (ids >= limits)
    if bad.any():
        at = int(bad.nonzero()[0])
        check.fail(
            f"block_indices[{at}] is {int(ids[at])}, but its request has {int(limits[at])} key "
            "blocks; they are counted from 0"
        )


def _variable(batch: AttentionBatch, layout: KVLayout, heads: int, intake: Intake) -> None:
    given: VariableBlockKV = batch.kv  # type: ignore[assignment]
    if batch.batch != 1:
        check.fail(f"variable blocks take one request, qo_indptr has {batch.batch}")
    block_map = intake.array(given.block_map, "block_map", (torch.bool,), (heads, "MB", "NB"))
    int32, (_, rows, cols) = (torch.int32,), block_map.shape
    kv = VariableBlockKV(
        intake.array(given.row_sizes, "row_sizes", int32, (heads, rows)),
        intake.array(given.col_sizes, "col_sizes", int32, (heads, cols)),
        block_map,
    )
    batch.kv = kv
    queries = _covered(intake.host(kv.row_sizes), "row_sizes")
    batch.kv_lens = _covered(intake.host(kv.col_sizes), "col_sizes")
    if queries is not None and batch.qo_lens is not None and queries != batch.qo_lens:
        check.fail(f"row_sizes sums to {queries[0]}, but the request has {batch.qo_lens[0]} rows")


def _covered(sizes: Tensor | None, name: str) -> Lengths | None:
    """How many tokens the sizes of every head cover, as the only length."""
    if sizes is None:
        return None
    if (sizes < 0).any():
        check.fail(f"{name} has negative sizes; needs >= 0")
    sums: list[int] = sizes.sum(1).tolist()
    if len(set(sums)) > 1:
        check.fail(f"{name} sums to {sums} over the heads; every head must cover all tokens")
    return Lengths(sums[:1])


_TAKE: dict[type[KVMetadata], Callable[..., None]] = {
    PagedKV: _paged,
    RaggedKV: _ragged,
    BlockSparseKV: _block_sparse,
    VariableBlockKV: _variable,
}


def _set_mask(batch: AttentionBatch, mask: Tensor | Sequence[Tensor], intake: Intake) -> None:
    if not isinstance(mask, Tensor):
        mask = _flatten(batch, mask)
    accepted = (torch.bool, torch.uint8)
    batch.mask = intake.array(mask, "mask", accepted, ("sum(qo_len * kv_len)",))
    batch.mask_packed = mask.dtype == torch.uint8
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
    if not isinstance(masks, (list, tuple)):
        check.fail(f"mask is a {type(masks).__name__}, needs a tensor or a list of 2-D tensors")
    if len(masks) != batch.batch:
        check.fail(f"mask lists {len(masks)} tensors, needs one for each of {batch.batch} requests")
    if not masks:
        return torch.zeros(0, dtype=torch.bool, device="cpu")
    for b, m in enumerate(masks):
        check.is_tensor(m, f"mask[{b}]")
        check.dtype(m, f"mask[{b}]", (torch.bool,))
        if batch.qo_lens is not None and batch.kv_lens is not None:
            check.shape(m, f"mask[{b}]", (batch.qo_lens[b], batch.kv_lens[b]))
        check.device(m, f"mask[{b}]", masks[0].device, "mask[0]")
    return torch.cat([m.reshape(-1) for m in masks])
