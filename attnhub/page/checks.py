"""Checks of what the paged-cache functions get: entries, page tables, where tokens go."""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.attn.kv import PagedKV
from attnhub.core import check, metadata

_DTYPES = check.FLOATS + check.FP8


def entries(new: Tensor, cache: Tensor, name: str, shape: tuple[int, ...], like: Tensor) -> None:
    """New entries of ``shape`` and their cache, both of the dtype and on the device of ``like``."""
    dtype, device = like.dtype, like.device
    if (
        not isinstance(new, Tensor)
        or new.shape != shape
        or dtype not in _DTYPES
        or new.dtype != dtype
        or cache.dtype != dtype
        or new.device != device
        or cache.device != device
        or new.stride(-1) != 1
        or cache.stride(-1) != 1
        or new.requires_grad
        or cache.requires_grad
    ):
        _explain_entries(new, cache, name, shape, like)


def _explain_entries(
    new: Tensor, cache: Tensor, name: str, shape: tuple[int, ...], like: Tensor
) -> None:
    """Raise for the first thing that is really wrong: text is made only here, off the fast path."""
    cache_name = name.removesuffix("_new") + "_cache"
    like_name = "k_new" if name.endswith("_new") else "ckv"
    check.is_tensor(new, name)
    check.shape(new, name, ("tokens" if new is like else shape[0], *shape[1:]))
    check.dtype(new, name, _DTYPES if new is like else (like.dtype,))
    if cache.dtype != like.dtype:
        check.fail(
            f"{cache_name} has dtype {check.dtype_name(cache.dtype)}, but the new entries are "
            f"{check.dtype_name(like.dtype)}; convert or quantise the entries first"
        )
    for tensor, its_name in ((new, name), (cache, cache_name)):
        check.device(tensor, its_name, like.device, like_name)
        check.last_contiguous(tensor, its_name)
    check.no_grad(new, cache)


def where(
    table: PagedKV, batch_indices: Tensor, positions: Tensor, new: Tensor, size: tuple[int, int]
) -> None:
    """The index tensors of an append; their values too where they lie on the host."""
    page_table(table)
    indptr(table.indptr, "table.indptr", new)
    index(table.indices, "table.indices", None, new)
    index(batch_indices, "batch_indices", new.shape[0], new)
    index(positions, "positions", new.shape[0], new)
    if size[1] < 1:
        check.fail("the cache has pages of 0 slots; needs a page size >= 1")
    if new.is_cpu and not torch.compiler.is_compiling():
        _places(table, batch_indices, positions, size)


def _places(
    table: PagedKV, batch_indices: Tensor, positions: Tensor, size: tuple[int, int]
) -> None:
    """Host values that would lead outside a request's pages, where they would harm another's."""
    num_pages, page_size = size
    owned = metadata.indptr_values(table.indptr, "table.indptr")
    if owned[-1] > table.indices.numel():
        check.fail(
            f"table.indptr ends at {owned[-1]} but table.indices has {table.indices.numel()} page "
            "ids; give one id for every page"
        )
    ids = table.indices[: owned[-1]]
    metadata.in_range(ids, "table.indices", 0, num_pages, "pages of the cache")
    metadata.in_range(batch_indices, "batch_indices", -1, len(owned) - 1, "-1 marks padding")
    request = batch_indices.long()
    pages = torch.cat([table.indptr.diff(), table.indptr.new_zeros(1)]).long()[request]
    outside = (request >= 0) & ((positions < 0) | (positions >= pages * page_size))
    if outside.any():
        bad = int(outside.nonzero()[0])
        check.fail(
            f"token {bad} goes to position {int(positions[bad])} of request {int(request[bad])}, "
            f"which owns {int(pages[bad])} pages of {page_size}; give the request its pages before "
            "appending to it"
        )


def page_table(table: PagedKV) -> None:
    """Require attention's page table."""
    if not isinstance(table, PagedKV):
        check.fail(
            f"table is a {type(table).__name__}; give PagedKV(indptr, indices, last_page_len)"
        )


def index(x: Tensor, name: str, length: int | None, like: Tensor) -> None:
    """Require an int32 vector on the device of ``like``."""
    metadata.index_tensor(x, name, length)
    if x.device != like.device:
        check.fail(
            f"{name} is on {x.device}, needs {like.device}, where what it indexes is; move it"
        )


def indptr(x: Tensor, name: str, like: Tensor) -> int:
    """Check a row pointer and return how many rows it has."""
    index(x, name, None, like)
    rows = x.shape[0] - 1
    if rows < 0:
        check.fail(f"{name} is empty, needs [batch + 1] with a leading 0")
    return rows


def lengths(append_indptr: Tensor, seq_lens: Tensor, num_tokens: int) -> None:
    """Host lengths by value: every request holds its new tokens, and all of them fit."""
    starts = metadata.indptr_values(append_indptr, "append_indptr")
    if num_tokens < starts[-1]:
        check.fail(
            f"num_tokens={num_tokens}, but append_indptr ends at {starts[-1]}; give at least that"
        )
    old = seq_lens - append_indptr.diff()
    if (old < 0).any():
        bad = int((old < 0).nonzero()[0])
        new = starts[bad + 1] - starts[bad]
        check.fail(
            f"seq_lens[{bad}] is {int(seq_lens[bad])}, fewer than the {new} tokens appended to "
            "that request; give lengths after the append"
        )
