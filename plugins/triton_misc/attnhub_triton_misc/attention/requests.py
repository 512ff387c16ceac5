"""Which request a tile belongs to, and what the metadata say of it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def factor(value, stride, head):
    """A scale for heads: a number, or elements of a tensor."""
    if stride is not None:
        value = tl.load(value + head * stride)
    return value


@triton.jit
def first_tile(request, qo_indptr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The first tile of a request, before which is room for a partly filled one per request.

    With ``ROWS`` 0 a tile is a token.
    """
    first = tl.load(qo_indptr + request)
    if ROWS:
        first = (first.to(tl.int64) * GROUP // ROWS).to(tl.int32) + request
    return first


@triton.jit
def find_request(tile, qo_indptr, batch, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The last request that begins at or before a tile; ``batch`` is that of rows nobody owns."""
    low = tl.full([], 0, tl.int32)
    high = low + batch
    while low < high:
        middle = (low + high + 1) // 2
        begins = first_tile(middle, qo_indptr, GROUP, ROWS) <= tile
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle - 1)
    return low


@triton.jit
def kv_length(requests, request, is_real, PAGE: tl.constexpr):
    """Keys of a request, 0 for that of rows nobody owns."""
    begin = tl.load(requests.kv_indptr + request, mask=is_real, other=0)
    count = tl.load(requests.kv_indptr + request + 1, mask=is_real, other=0) - begin
    if PAGE:
        last = tl.load(requests.last_page_len + request, mask=is_real, other=0)
        count = tl.where(count > 0, (count - 1) * PAGE + last, 0)
    return count
