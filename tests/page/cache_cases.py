"""A page table, caches of every form, and what an append must leave in them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnhub.attn import PagedKV
from attnhub.page.reference import Layout

PAGES, PAGE, HEADS, DIM_K, DIM_V = 8, 4, 3, 6, 5
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# Three requests in scattered pages; the second owns none. The last id is beyond indptr: a spare.
TABLE = PagedKV(int32(0, 3, 3, 5), int32(7, 2, 6, 0, 5, -9), int32(4, 0, 2))
REQUEST, POSITION = int32(0, 2, -1, 0, 2), int32(2 * PAGE, 5, -1, 3, 0)
SLOTS = {0: (6, 0), 1: (5, 1), 3: (7, 3), 4: (0, 0)}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def nan(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, torch.nan).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(BITS[x.element_size()])


def written(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """What a cache [pages, page, ...] must hold afterwards, bit for bit."""
    expected, source = bits(cache).clone(), bits(new)
    for token, (page, slot) in SLOTS.items():
        expected[page, slot] = source[token]
    return expected


class Caches(NamedTuple):
    """A cache as it is given, and its halves as [pages, page, heads, dim]."""

    given: Any
    k: torch.Tensor
    v: torch.Tensor


def caches(form: str, layout: Layout, dtype: torch.dtype) -> Caches:
    inner = (PAGE, HEADS) if layout == "NHD" else (HEADS, PAGE)
    if form == "one-tensor":
        given: Any = nan(PAGES, 2, *inner, DIM_K, dtype=dtype)
        k, v = given[:, 0], given[:, 1]
    elif form == "layer-of-a-stack":
        given = nan(PAGES, 3, 2, *inner, DIM_K + 2, dtype=dtype)[:, 1, ..., 1:-1]
        k, v = given[:, 0], given[:, 1]
    else:
        k, v = (nan(PAGES, *inner, dim, dtype=dtype) for dim in (DIM_K, DIM_V))
        given = (k, v)
    if layout == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return Caches(given, k, v)


def replaced(**changed: torch.Tensor) -> PagedKV:
    return PagedKV(**{name: changed.get(name, getattr(TABLE, name)) for name in TABLE.__slots__})
