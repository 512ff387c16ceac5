"""Batches that tokens are appended to: real sizes for benchmarks, one of every case for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnhub.attn.kv import PagedKV
from attnhub.page import api

#: (requests, new tokens of each, length after, page size, tag). The first request gets none; as
#: many tokens at the end are padding.
BATCHES = (
    (3, 4, 21, 5, "small"),
    (4, 1, 33, 16, "small"),
    (128, 1, 2048, 16, "h200"),
    (1024, 1, 512, 64, "h200"),
    (9, 2048, 2048, 16, "h200"),
)


def page_table(requests: int, length: int, page_size: int, device: torch.device) -> PagedKV:
    """Pages in falling order, so that no request's are consecutive."""
    pages = -(-length // page_size)
    total = requests * pages
    return PagedKV(
        indptr=int32(range(0, total + 1, pages), device),
        indices=int32(reversed(range(total)), device),
        last_page_len=int32([length - (pages - 1) * page_size] * requests, device),
    )


def int32(values: Any, device: torch.device) -> Tensor:
    """Metadata."""
    return torch.tensor(list(values), dtype=torch.int32, device=device)


def new_tokens(
    requests: int, new: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """What get_batch_indices_positions takes."""
    indptr = int32(accumulate([0, 0, *[new] * (requests - 1)]), device)
    return indptr, int32([length] * requests, device), new * requests


def random(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    """Normal bfloat16."""
    x = torch.randn(shape, generator=generator, device=generator.device)
    return x.to(device, torch.bfloat16)


Growth = tuple[tuple[tuple[int, int], tuple[int, int]], ...]
#: Tokens of each request before and after, in pages and tokens: one that fills a page and goes on
#: into the next, one that gets nothing, one that is new, one that stays empty, one of one token.
MUCH: Growth = (
    ((1, 2), (2, 3)),
    ((0, 3), (0, 3)),
    ((0, 0), (2, 0)),
    ((0, 0), (0, 0)),
    ((1, 0), (1, 1)),
)
#: The first three with few tokens, for what computes more: kernels are interpreted here.
LITTLE: Growth = (((1, -1), (1, 1)), ((0, 3), (0, 3)), ((0, 0), (0, 1)))
_PADDING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Where new tokens go. Pages lie in any order and some are nobody's, some rows are padding."""

    table: PagedKV
    num_pages: int
    batch_indices: Tensor
    positions: Tensor

    @classmethod
    def of(
        cls,
        page_size: int,
        device: torch.device,
        generator: torch.Generator,
        *,
        shuffled: bool,
        growth: Growth = MUCH,
    ) -> Append:
        """With padding last; or with tokens of all requests and padding in any order."""
        lengths = [[n * page_size + m for n, m in pair] for pair in growth]
        new, after = [b - a for a, b in lengths], int32([b for _, b in lengths], device)
        pages = [-(-b // page_size) for _, b in lengths]
        order = torch.randperm(sum(pages) + 2, generator=generator)[: sum(pages)]
        table = PagedKV(
            int32(accumulate([0, *pages]), device),
            int32(order.tolist(), device),
            int32([(b - 1) % page_size + 1 for _, b in lengths], device),
        )
        starts = int32(accumulate([0, *new]), device)
        where = api.get_batch_indices_positions(starts, after, sum(new) + _PADDING)
        rows = torch.arange(len(where[0]))
        if shuffled:
            rows = torch.randperm(len(rows), generator=generator)
        indices, positions = (x[rows.to(device)] for x in where)
        return cls(
            table=table, num_pages=sum(pages) + 2, batch_indices=indices, positions=positions
        )

    def nothing(self) -> Append:
        """The same cache, to which no token is appended."""
        return replace(self, batch_indices=self.batch_indices[:0], positions=self.positions[:0])

    def rows(self, inner: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
        """New entries ``[tokens, *inner]``, NaN in those of padding."""
        drawn = torch.randn(self.positions.shape[0], *inner, generator=generator)
        drawn[self.batch_indices.cpu() < 0] = math.nan
        return drawn.to(self.positions.device, getattr(torch, dtype))

    def cache(self, inner: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
        """``[pages, *inner]`` in use, NaN in nobody's pages: what is not appended to must stay."""
        drawn = torch.randn(self.num_pages, *inner, generator=generator)
        owned = torch.zeros(self.num_pages, dtype=torch.bool)
        owned[self.table.indices.cpu().long()] = True
        drawn[~owned] = math.nan
        return drawn.to(self.positions.device, getattr(torch, dtype))
