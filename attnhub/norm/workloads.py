"""Inputs of the norms: small ones for tests, the sizes of real models for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.norm import api

#: (tokens, hidden, tags); 111 is no multiple of a vector, 1 and 128 tokens are decode batches.
_SIZES = (
    (7, 64, "small"),
    (5, 111, "small"),
    (1, 4096, "h200"),
    (128, 4096, "h200"),
    (16384, 4096, "h200"),
    (16384, 8192, "h200"),
)

Make = Callable[[torch.device, torch.Generator], Callable[[], Any]]


def _rmsnorm(tokens: int, hidden: int, dtype: torch.dtype) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        x, weight = _random((tokens, hidden), (hidden,), dtype, device, generator)
        out = torch.empty_like(x)
        return lambda: api.rmsnorm(x, weight, out=out)

    return make


def _fused_add_rmsnorm(tokens: int, hidden: int, dtype: torch.dtype) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        x, weight = _random((tokens, hidden), (hidden,), dtype, device, generator)
        residual = torch.zeros_like(x)
        return lambda: api.fused_add_rmsnorm(x, residual, weight)

    return make


def _layernorm(tokens: int, hidden: int, dtype: torch.dtype) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        x, weight = _random((tokens, hidden), (hidden,), dtype, device, generator)
        out = torch.empty_like(x)
        return lambda: api.layernorm(x, weight, out=out)

    return make


def _random(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> list[torch.Tensor]:
    return [
        torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)
        for shape in (x, weight)
    ]


def _cases(make: Callable[..., Make], tensors: int) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{tokens}x{hidden}-bfloat16",
            make=make(tokens, hidden, torch.bfloat16),
            work=Work(flops=4.0 * tokens * hidden, bytes=2.0 * tensors * tokens * hidden),
            tags=frozenset({tag}),
            facts={"tokens": tokens, "hidden": hidden, "dtype": "bfloat16"},
        )
        for tokens, hidden, tag in _SIZES
    )


rmsnorm = _cases(_rmsnorm, 2)
fused_add_rmsnorm = _cases(_fused_add_rmsnorm, 4)
layernorm = _cases(_layernorm, 2)
