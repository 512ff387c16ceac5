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
def locate(tile, requests, tokens, kv_tokens, batch, FORM: tl.constexpr, ROWS: tl.constexpr):
    """A tile's request, its first row, the request's first token and lengths, and its first key.

    With ``ROWS`` 0 a tile and a row are a token. Requests of a dense batch have equal lengths, so
    that no metadata are read; ``tokens`` and ``kv_tokens`` count those of all. The last request of
    others is that of rows nobody owns.
    """
    STEP: tl.constexpr = ROWS or 1
    if FORM.dense:
        qo_len, kv_len = tokens // batch, kv_tokens // batch
        tiles = tl.cdiv(qo_len * FORM.group, ROWS) if ROWS else qo_len
        request = tile // tiles
        row, begin, first = (tile - request * tiles) * STEP, 0, 0
    else:
        request = find_request(tile, requests.qo_indptr, batch, FORM.group, ROWS)
        is_real = request < batch
        begin = tl.load(requests.qo_indptr + request)
        end = tl.load(requests.qo_indptr + request + 1, mask=is_real, other=0)
        qo_len = tl.where(is_real, end, tokens) - begin
        kv_len = kv_length(requests, request, is_real, FORM.page)
        first = tl.load(requests.kv_indptr + request, mask=is_real, other=0)
        row = (tile - first_tile(request, requests.qo_indptr, FORM.group, ROWS)) * STEP
    return request, row, begin, qo_len, kv_len, first


@triton.jit
def kv_length(requests, request, is_real, PAGE: tl.constexpr):
    """Keys of a request, 0 for that of rows nobody owns."""
    begin = tl.load(requests.kv_indptr + request, mask=is_real, other=0)
    count = tl.load(requests.kv_indptr + request + 1, mask=is_real, other=0) - begin
    if PAGE:
        last = tl.load(requests.last_page_len + request, mask=is_real, other=0)
        count = tl.where(count > 0, (count - 1) * PAGE + last, 0)
    return count
