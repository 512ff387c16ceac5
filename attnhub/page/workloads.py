"""Inputs of the paged-cache operations: small ones for tests, real sizes for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnhub.attn.kv import PagedKV
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.page import api
from attnhub.page.reference import Layout

#: (requests, new tokens of each, length after, page size, tag). The first request gets none; as
#: many tokens at the end are padding.
_BATCHES = (
    (3, 4, 21, 5, "small"),
    (4, 1, 33, 16, "small"),
    (128, 1, 2048, 16, "h200"),
    (1024, 1, 512, 64, "h200"),
    (9, 2048, 2048, 16, "h200"),
)
_HEADS, _DIM, _CKV, _KPE = 8, 128, 512, 64

Run = Callable[[], Any]
Make = Callable[[torch.device, torch.Generator], Run]


def _table(requests: int, length: int, page_size: int, device: torch.device) -> PagedKV:
    """Pages in falling order, so that no request's are consecutive."""
    pages = -(-length // page_size)
    total = requests * pages
    return PagedKV(
        indptr=_int32(range(0, total + 1, pages), device),
        indices=_int32(reversed(range(total)), device),
        last_page_len=_int32([length - (pages - 1) * page_size] * requests, device),
    )


def _int32(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device=device)


def _new_tokens(
    requests: int, new: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """What get_batch_indices_positions takes."""
    indptr = _int32(accumulate([0, 0, *[new] * (requests - 1)]), device)
    return indptr, _int32([length] * requests, device), new * requests


def _random(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=generator, device=generator.device)
    return x.to(device, torch.bfloat16)


def _append_kv(requests: int, new: int, length: int, page_size: int, layout: Layout) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = _table(requests, length, page_size, device)
        where = api.get_batch_indices_positions(*_new_tokens(requests, new, length, device))
        k_new, v_new = (_random((new * requests, _HEADS, _DIM), device, generator) for _ in "kv")
        inner = (page_size, _HEADS) if layout == "NHD" else (_HEADS, page_size)
        shape = (table.indices.numel(), 2, *inner, _DIM)
        cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)

        def run() -> Tensor:
            api.append_paged_kv(k_new, v_new, cache, table, *where, layout=layout)
            return cache

        return run

    return make


def _append_mla(requests: int, new: int, length: int, page_size: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = _table(requests, length, page_size, device)
        where = api.get_batch_indices_positions(*_new_tokens(requests, new, length, device))
        ckv, kpe = (_random((new * requests, dim), device, generator) for dim in (_CKV, _KPE))
        shape = (table.indices.numel(), page_size, _CKV + _KPE)
        cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        ckv_cache, kpe_cache = cache.split((_CKV, _KPE), dim=-1)

        def run() -> Tensor:
            api.append_paged_mla(ckv, kpe, ckv_cache, kpe_cache, table, *where)
            return cache

        return run

    return make


def _batch_indices(requests: int, new: int, length: int, page_size: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        inputs = _new_tokens(requests, new, length, device)
        return lambda: api.get_batch_indices_positions(*inputs)

    return make


def _seq_lens(requests: int, new: int, length: int, page_size: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = _table(requests, length, page_size, device)
        return lambda: api.get_seq_lens(table, page_size)

    return make


def _cases(
    make: Callable[..., Make], *, token: int = 0, request: int = 0, **options: Any
) -> tuple[Workload, ...]:
    """``token`` and ``request``: bytes read and written for each of them."""
    return tuple(
        Workload(
            name="-".join([f"{requests}x{new}-of-{length}-page{page_size}", *options.values()]),
            make=make(requests, new, length, page_size, **options),
            work=Work(flops=0.0, bytes=float((token * new + request) * requests)),
            tags=frozenset({tag}),
            facts={"requests": requests, "new": new, "page_size": page_size, **options},
        )
        for requests, new, length, page_size, tag in _BATCHES
    )


_KV = 2 * 2 * 2 * _HEADS * _DIM
append_paged_kv = (
    *_cases(_append_kv, token=_KV, layout="NHD"),
    *_cases(_append_kv, token=_KV, layout="HND"),
)
append_paged_mla = _cases(_append_mla, token=2 * 2 * (_CKV + _KPE))
get_batch_indices_positions = _cases(_batch_indices, token=8, request=8)
get_seq_lens = _cases(_seq_lens, request=12)
