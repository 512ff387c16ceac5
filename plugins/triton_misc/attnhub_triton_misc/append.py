"""Appending to a paged cache: what the appends share, which is all but the shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub.plugin import dtype_of
from attnhub_triton_misc.launch import cdiv, launch, overlap
from attnhub_triton_misc.settings import copied
from attnhub_triton_misc.tuned import choose

# To a kernel, a named tuple is one argument; its numbers are specialised as others are.


class Entries(NamedTuple):
    """New entries ``[tokens, heads, dim]``."""

    pointer: Any
    token_stride: int
    head_stride: int


class Pages(NamedTuple):
    """A cache ``[pages, slots, heads, dim]``, its axes in any order but for the last."""

    pointer: Any
    page_stride: int
    slot_stride: int
    head_stride: int


class Table(NamedTuple):
    """The pages of each request, and how many requests, page ids and pages there are."""

    indptr: Any
    indices: Any
    requests: int
    ids: int
    pages: int


class Places(NamedTuple):
    """Request and position of each token."""

    batch_indices: Any
    positions: Any
    tokens: int


@triton.jit
def _append(
    a_new, a_cache,
    b_new, b_cache,
    table, places,
    PAGE_SIZE: tl.constexpr, HEADS: tl.constexpr, DIM_A: tl.constexpr, DIM_B: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``cache[page[token], slot[token]] = new[token]``, for ``a`` and for ``b``.

    Where a token goes takes three loads, each of which waits for the one before. So the entries are
    asked for first, and arrive in the meantime.
    """
    overlap(PDL)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live = (token < places.tokens)[:, None]
    element = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    in_a = live & (element < HEADS * DIM_A)
    in_b = live & (element < HEADS * DIM_B)
    row = token.to(tl.int64)
    a_from = _elements(a_new, row * a_new.token_stride, element, DIM_A)
    b_from = _elements(b_new, row * b_new.token_stride, element, DIM_B)
    a = tl.load(a_from, mask=in_a, other=0)
    b = tl.load(b_from, mask=in_b, other=0)
    # NOTE: without it, ptxas moves these loads behind those below, to save registers.
    tl.debug_barrier()
    page, slot, found = locate(token, table, places, PAGE_SIZE)
    a_to = page * a_cache.page_stride + slot * a_cache.slot_stride
    b_to = page * b_cache.page_stride + slot * b_cache.slot_stride
    tl.store(_elements(a_cache, a_to, element, DIM_A), a, mask=in_a & found[:, None])
    tl.store(_elements(b_cache, b_to, element, DIM_B), b, mask=in_b & found[:, None])


@triton.jit
def _elements(tensor, offset, element, DIM: tl.constexpr):
    """Elements of ``[heads, dim]`` at an offset; heads may be further apart than pages are."""
    head = (element // DIM).to(tl.int64)
    return tensor.pointer + offset[:, None] + head * tensor.head_stride + element % DIM


@triton.jit
def locate(token, table, places, PAGE_SIZE: tl.constexpr):
    """Page and slot of each token, int64, and whether it has any.

    A number that leads outside, as padding's does, is replaced by one that does not, and found out
    in the end: a mask for each load is more than a thread has predicates for.
    """
    token = tl.minimum(token, places.tokens - 1)
    request = tl.load(places.batch_indices + token)
    position = tl.load(places.positions + token)
    owner = tl.minimum(tl.maximum(request, 0), table.requests - 1)
    start = tl.load(table.indptr + owner)
    end = tl.load(table.indptr + owner + 1)
    entry = start.to(tl.int64) + position // PAGE_SIZE
    page = tl.load(table.indices + tl.minimum(tl.maximum(entry, 0), table.ids - 1))
    found = (request == owner) & (position >= 0)
    found &= (entry >= 0) & (entry < end) & (entry < table.ids)
    found &= (page >= 0) & (page < table.pages)
    return page.to(tl.int64), (position % PAGE_SIZE).to(tl.int64), found


class Append:
    """A planned append of two tensors with ``heads`` rows of ``dims`` elements for each token."""

    def __init__(self, problem: Any, heads: int, dims: tuple[int, int]) -> None:
        self._codes = problem.dtype.startswith("float8")
        self._shape = (problem.page_size, heads, *dims)
        self._width = heads * max(dims)
        self._tile = choose(problem, copied(self._width, dtype_of(problem.dtype).itemsize))

    def pointers(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors as a kernel takes them: FP8 as bytes, which any GPU can copy."""
        return tuple(x.view(torch.uint8) for x in tensors) if self._codes else tensors

    def launch(
        self, a: tuple[Entries, Pages], b: tuple[Entries, Pages], table: Table, places: Places
    ) -> None:
        """Copy ``a`` and ``b``, each from its first to its second."""
        if 0 in (table.requests, table.ids, table.pages):
            return  # nothing to append to, and no table to read
        page_size, heads, dim_a, dim_b = self._shape
        tile = self._tile
        launch(
            _append,
            (cdiv(places.tokens, tile.rows), cdiv(self._width, tile.block)),
            places.positions.device,
            *a,
            *b,
            table, places,
            PAGE_SIZE=page_size, HEADS=heads, DIM_A=dim_a, DIM_B=dim_b,
            TOKENS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps,
        )  # fmt: skip
