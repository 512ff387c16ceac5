"""Inputs of the rotations: small ones for tests, the sizes of real models for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.rope import api
from attnhub.rope.tables import cos_sin_cache
from attnhub.variant.rope import Llama3Scaling, Rope, YarnScaling

_MAX_POSITION = 8192
_LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)
_YARN = YarnScaling(factor=4, original_max_position=32768)

#: (tokens, (qo_heads, kv_heads, dim), rope, tags); 40 and 80 are no powers of two, 16 of 80 turned
#: is a partial rotation, 1 and 128 tokens are decode batches.
_CASES: tuple[tuple[int, tuple[int, int, int], Rope, str], ...] = (
    (7, (4, 2, 64), Rope(), "small"),
    (5, (4, 1, 40), Rope(interleaved=True, scaling=_YARN), "small"),
    (5, (3, 3, 80), Rope(rotary_dim=16, scaling=_LLAMA3), "small"),
    (1, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (128, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (8192, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (8192, (32, 32, 128), Rope(interleaved=True), "h200"),
)


def _apply_rope(q: Tensor, k: Tensor, positions: Tensor, rope: Rope) -> Callable[[], Any]:
    out = torch.empty_like(q), torch.empty_like(k)
    return lambda: api.apply_rope(q, k, positions, rope, out=out)


def _apply_rope_cos_sin(q: Tensor, k: Tensor, positions: Tensor, rope: Rope) -> Callable[[], Any]:
    out = torch.empty_like(q), torch.empty_like(k)
    cache = cos_sin_cache(_MAX_POSITION, q.shape[2], rope, device=q.device)
    return lambda: api.apply_rope_cos_sin(
        q, k, positions, cache, interleaved=rope.interleaved, out=out
    )


def _workload(
    call: Callable[..., Callable[[], Any]],
    tokens: int,
    heads: tuple[int, int, int],
    rope: Rope,
    tag: str,
) -> Workload:
    qo_heads, kv_heads, dim = heads

    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        q, k = (
            torch.randn(tokens, n, dim, generator=generator, device=generator.device).to(
                device, torch.bfloat16
            )
            for n in (qo_heads, kv_heads)
        )
        positions = torch.arange(tokens, dtype=torch.int32, device=device) % _MAX_POSITION
        return call(q, k, positions, rope)

    elements = tokens * (qo_heads + kv_heads) * dim
    pairing = "interleaved" if rope.interleaved else "halves"
    return Workload(
        name=f"{tokens}x{qo_heads}+{kv_heads}x{dim}-{pairing}-bfloat16",
        make=make,
        work=Work(flops=3.0 * elements, bytes=4.0 * elements),
        tags=frozenset({tag}),
        facts={
            "tokens": tokens,
            "num_qo_heads": qo_heads,
            "num_kv_heads": kv_heads,
            "head_dim": dim,
            "rope": str(rope),
            "dtype": "bfloat16",
        },
    )


apply_rope = tuple(_workload(_apply_rope, *case) for case in _CASES)
apply_rope_cos_sin = tuple(_workload(_apply_rope_cos_sin, *case) for case in _CASES)
