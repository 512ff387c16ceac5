"""Inputs of the paged-cache operations: real sizes for benchmarks, any problem for tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from attnhub.attn.kv import PagedKV
from attnhub.core.calls import Calls, Run, spaced
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.page import api, rope_workloads
from attnhub.page.batches import BATCHES, Append, int32, new_tokens, page_table, random
from attnhub.page.problem import (
    AppendPagedKVProblem,
    AppendPagedMLAProblem,
    BatchIndicesPositionsProblem,
    SeqLensProblem,
)
from attnhub.page.reference import Layout

_HEADS, _DIM, _CKV, _KPE = 8, 128, 512, 64

Make = Callable[[torch.device, torch.Generator], Run]


def _append_kv(requests: int, new: int, length: int, page_size: int, layout: Layout) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = page_table(requests, length, page_size, device)
        where = api.get_batch_indices_positions(*new_tokens(requests, new, length, device))
        k_new, v_new = (random((new * requests, _HEADS, _DIM), device, generator) for _ in "kv")
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
        table = page_table(requests, length, page_size, device)
        where = api.get_batch_indices_positions(*new_tokens(requests, new, length, device))
        ckv, kpe = (random((new * requests, dim), device, generator) for dim in (_CKV, _KPE))
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
        inputs = new_tokens(requests, new, length, device)
        return lambda: api.get_batch_indices_positions(*inputs)

    return make


def _seq_lens(requests: int, new: int, length: int, page_size: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = page_table(requests, length, page_size, device)
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
        for requests, new, length, page_size, tag in BATCHES
    )


_KV = 2 * 2 * 2 * _HEADS * _DIM
append_paged_kv = (
    *_cases(_append_kv, token=_KV, layout="NHD"),
    *_cases(_append_kv, token=_KV, layout="HND"),
)
append_paged_mla = _cases(_append_mla, token=2 * 2 * (_CKV + _KPE))
rope_append_paged_kv = rope_workloads.workloads
get_batch_indices_positions = _cases(_batch_indices, token=8, request=8)
get_seq_lens = _cases(_seq_lens, request=12)


def _kv_calls(
    problem: AppendPagedKVProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """One tensor for both, where dims allow it; two cut out of larger ones; no tokens."""
    p, heads, layout = problem, problem.num_kv_heads, cast("Layout", problem.layout)
    dims = (p.head_dim_qk, p.head_dim_vo)
    inner = (p.page_size, heads) if layout == "NHD" else (heads, p.page_size)

    def append(*, cut: bool, nothing: bool = False) -> list[Tensor]:
        to = Append.of(p.page_size, device, generator, shuffled=cut)
        to = to.nothing() if nothing else to
        k, v = (to.rows((heads, dim), p.dtype, generator) for dim in dims)
        wholes = [to.cache((*inner, dim + 16 * cut), p.dtype, generator) for dim in dims]
        caches: Any = (wholes[0][..., : dims[0]], wholes[1][..., : dims[1]])
        if dims[0] == dims[1] and not cut:
            caches = to.cache((2, *inner, dims[0]), p.dtype, generator)
            wholes = [caches]
        k, v = (spaced(k), spaced(v)) if cut else (k, v)
        api.append_paged_kv(k, v, caches, to.table, to.batch_indices, to.positions, layout=layout)
        return wholes

    def run() -> dict[str, Tensor]:
        caches = [*append(cut=False), *append(cut=True), *append(cut=False, nothing=True)]
        return {f"cache {i}": x for i, x in enumerate(caches)}

    return run


def _mla_calls(
    problem: AppendPagedMLAProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """Two caches; no tokens; two slices of one tensor."""
    p, dims = problem, (problem.dim_ckv, problem.dim_kpe)

    def run() -> dict[str, Tensor]:
        to = Append.of(p.page_size, device, generator, shuffled=False)
        new = [to.rows((dim,), p.dtype, generator) for dim in dims]
        ckv, kpe = (to.cache((p.page_size, dim), p.dtype, generator) for dim in dims)
        for these, rows in ((to, new), (to.nothing(), [x[:0] for x in new])):
            api.append_paged_mla(
                rows[0], rows[1], ckv, kpe, to.table, these.batch_indices, these.positions
            )
        to = Append.of(p.page_size, device, generator, shuffled=True)
        new = [spaced(to.rows((dim,), p.dtype, generator)) for dim in dims]
        one = to.cache((p.page_size, sum(dims) + 16), p.dtype, generator)
        slices = one[..., : dims[0]], one[..., dims[0] : sum(dims)]
        api.append_paged_mla(
            new[0], new[1], slices[0], slices[1], to.table, to.batch_indices, to.positions
        )
        return {"ckv": ckv, "kpe": kpe, "one tensor": one}

    return run


def _index_calls(
    problem: BatchIndicesPositionsProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """Requests without new tokens at both ends and inside, rows of padding, no request at all."""
    new = (0, 3, 0, 0, 1, 40, 0)
    starts = int32(accumulate([0, *new]), device)
    lengths = int32([count + 7 * i for i, count in enumerate(new)], device)

    def run() -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, rows in (("", sum(new)), (", padded", sum(new) + 70)):
            indices, positions = api.get_batch_indices_positions(starts, lengths, rows)
            found |= {f"request{name}": indices, f"position{name}": positions}
        for rows in (2, 0):
            indices, positions = api.get_batch_indices_positions(starts[:1], lengths[:0], rows)
            found |= {f"request, {rows} of none": indices, f"position, {rows} of none": positions}
        return found

    return run


def _length_calls(problem: SeqLensProblem, device: torch.device, generator: torch.Generator) -> Run:
    """Requests of no page, whatever their last page is said to hold, of one page, of several."""
    pages, last = (0, 1, 3, 0, 2), (0, 1, 4, 5, 5)
    indptr, last_page_len = int32(accumulate([0, *pages]), device), int32(last, device)
    table = PagedKV(indptr, int32(range(sum(pages)), device), last_page_len)
    nobody = PagedKV(indptr[:1], table.indices[:0], last_page_len[:0])
    return lambda: {
        "of 5": api.get_seq_lens(table, 5),
        "of 64": api.get_seq_lens(table, 64),
        "of none": api.get_seq_lens(nobody, 5),
    }


_BASE = {"dtype": "float32", "page_size": 5}
calls = {
    "page.append_paged_kv": Calls(
        build=_kv_calls, base={**_BASE, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
    ),
    "page.append_paged_mla": Calls(build=_mla_calls, base=_BASE),
    "page.rope_append_paged_kv": rope_workloads.calls,
    "page.get_batch_indices_positions": Calls(build=_index_calls),
    "page.get_seq_lens": Calls(build=_length_calls),
}
