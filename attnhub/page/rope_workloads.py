"""Inputs of the rotary embedding that appends: real sizes for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from attnhub.attn.kv import Scales
from attnhub.core.calls import Calls, Run, spaced
from attnhub.core.device import Device
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.page import api
from attnhub.page.batches import BATCHES, LITTLE, Append, new_tokens, page_table, random
from attnhub.page.problem import RopeAppendPagedKVProblem
from attnhub.page.reference import Layout
from attnhub.page.rope_append import rope_append_paged_kv
from attnhub.rope.tables import cos_sin_cache
from attnhub.variant.rope import Rope

_QO_HEADS, _KV_HEADS, _DIM = 32, 8, 128
_ROPE = Rope(theta=5e5)


def _make(
    requests: int, new: int, length: int, page_size: int, kv_dtype: torch.dtype
) -> Callable[[torch.device, torch.Generator], Run]:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        table = page_table(requests, length, page_size, device)
        where = api.get_batch_indices_positions(*new_tokens(requests, new, length, device))
        heads = _QO_HEADS + 2 * _KV_HEADS
        qkv = random((new * requests, heads, _DIM), device, generator)
        turns = cos_sin_cache(length, _DIM, _ROPE, device=device)
        shape = (table.indices.numel(), 2, page_size, _KV_HEADS, _DIM)
        cache = torch.zeros(shape, dtype=kv_dtype, device=device)
        out = torch.empty_like(qkv[:, :_QO_HEADS])

        def run() -> tuple[Tensor, Tensor]:
            rope_append_paged_kv(qkv, turns, cache, table, *where, out=out)
            return out, cache

        return run

    return make


def _workload(
    requests: int, new: int, length: int, page_size: int, tag: str, kv_dtype: torch.dtype
) -> Workload:
    stored = str(kv_dtype).removeprefix("torch.")
    token = _DIM * (4 * _QO_HEADS + 2 * _KV_HEADS * (2 + kv_dtype.itemsize) + 4)
    return Workload(
        name=f"{requests}x{new}-of-{length}-page{page_size}-{stored}",
        make=_make(requests, new, length, page_size, kv_dtype),
        work=Work(
            flops=3.0 * new * requests * (_QO_HEADS + _KV_HEADS) * _DIM,
            bytes=float(new * requests * token),
        ),
        tags=frozenset({tag}),
        facts={"requests": requests, "new": new, "page_size": page_size, "kv_dtype": stored},
    )


workloads = tuple(
    _workload(*batch, kv_dtype)
    for kv_dtype in (torch.bfloat16, torch.float8_e4m3fn)
    for batch in BATCHES
)


def _build(
    problem: RopeAppendPagedKVProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """Packed where dims allow it; all of it cut out of larger tensors, in place; no tokens."""
    p, dtype = problem, getattr(torch, problem.dtype)
    stored = p.dtype if p.fp8 == "none" else p.fp8
    layout, heads = cast("Layout", p.layout), (p.num_qo_heads, p.num_kv_heads, p.num_kv_heads)
    inner = (p.page_size, heads[1]) if layout == "NHD" else (heads[1], p.page_size)
    dims = (p.head_dim_qk, p.head_dim_qk, p.head_dim_vo)
    rope = Rope(theta=100.0, rotary_dim=p.rotary_dim)
    longest = p.page_size + 3  # of these requests
    turns = spaced(cos_sin_cache(longest, p.head_dim_qk, rope, device=device))

    def append(*, cut: bool, nothing: bool = False) -> dict[str, Tensor]:
        to = Append.of(p.page_size, device, generator, shuffled=cut, growth=LITTLE)
        to = to.nothing() if nothing else to
        q, k, v = (to.rows(shape, p.dtype, generator) for shape in zip(heads, dims, strict=True))
        q.copy_(torch.randn(q.shape, generator=generator))  # padding too has queries
        if p.fp8 != "none":
            v[:, :, :2] = torch.tensor([math.inf, -6e4], dtype=dtype, device=device)
        wholes = [to.cache((*inner, dim + 16 * cut), stored, generator) for dim in dims[1:]]
        caches: Any = tuple(whole[..., :dim] for whole, dim in zip(wholes, dims[1:], strict=True))
        out = torch.full_like(q, math.nan, dtype=getattr(torch, stored)) if p.fp8_q else None
        given: Any = q, k, v
        if cut:
            given = q, k, v = spaced(q), spaced(k), spaced(v)
            out = q if out is None else spaced(out)
        elif dims[1] == dims[2]:
            given = torch.cat(given, dim=1)
            caches = to.cache((2, *inner, dims[1]), stored, generator)
            wholes = [caches]
        out = rope_append_paged_kv(
            given, turns, caches, to.table, to.batch_indices, to.positions,
            interleaved=p.interleaved, layout=layout, scales=scales(cut=cut), out=out,
        )  # fmt: skip
        return {"q": out, **{f"cache {i}": whole for i, whole in enumerate(wholes)}}

    def scales(*, cut: bool) -> Scales:
        """Numbers; or tensors of one element and of one for each head."""
        q, k, v = 1.5, 1.25, 0.75
        if not cut:
            cached = p.fp8 != "none"
            return Scales(q if p.fp8_q else 1.0, k if cached else 1.0, v if cached else 1.0)
        if p.fp8 == "none":
            return Scales()
        per_head = [torch.linspace(0.75, 2.0, n, device=device) for n in heads]
        one = torch.full((), k, device=device)
        return Scales(per_head[0] if p.fp8_q else 1.0, one, per_head[2])

    def run() -> dict[str, Tensor]:
        calls = append(cut=False), append(cut=True), append(cut=False, nothing=True)
        return {
            f"{name} of call {i}": x for i, call in enumerate(calls) for name, x in call.items()
        }

    return run


def _clashes(facts: Mapping[str, Any], _: Device) -> set[str]:
    wide = {"rotary_dim", "head_dim_qk"} if facts["rotary_dim"] > facts["head_dim_qk"] else set()
    return wide | ({"fp8", "fp8_q"} if facts["fp8_q"] and facts["fp8"] == "none" else set())


calls = Calls(
    build=_build,
    base={"page_size": 5, "num_qo_heads": 4, "num_kv_heads": 2}
    | {"head_dim_qk": 64, "head_dim_vo": 64, "rotary_dim": 64},
    clashes=_clashes,
)
