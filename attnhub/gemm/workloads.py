"""Inputs of the grouped product: small ones for tests, adapters and experts for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.gemm import api

#: (rows of each segment, k, n, tag): 111 is no multiple of a tile; then a LoRA down and up
#: projection in decode, and the experts of a mixture in prefill, one of them idle.
_SIZES = (
    ((3, 0, 5, 1), 64, 32, "small"),
    ((2, 4), 111, 7, "small"),
    ((4,) * 32, 4096, 16, "h200"),
    ((4,) * 32, 16, 4096, "h200"),
    ((0, *(2048,) * 7), 4096, 14336, "h200"),
)

Make = Callable[[torch.device, torch.Generator], Callable[[], Any]]


def _make(lengths: tuple[int, ...], k: int, n: int, *, transposed: bool) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        def random(*shape: int) -> torch.Tensor:
            x = torch.randn(shape, generator=generator, device=generator.device)
            return x.to(device, torch.bfloat16)

        def int32(values: Any) -> torch.Tensor:
            return torch.tensor(list(values), dtype=torch.int32, device=device)

        x = random(sum(lengths), k)
        weights = random(len(lengths), *((n, k) if transposed else (k, n)))
        indptr, indices = int32(accumulate((0, *lengths))), int32(reversed(range(len(lengths))))
        out = x.new_empty(sum(lengths), n)
        return lambda: api.segment_gemm(
            x, weights, indptr, weight_indices=indices, transposed=transposed, out=out
        )

    return make


segment_gemm = tuple(
    Workload(
        name=f"{len(lengths)}seg-{sum(lengths)}x{k}x{n}-{'nk' if transposed else 'kn'}-bfloat16",
        make=_make(lengths, k, n, transposed=transposed),
        work=Work(
            flops=2.0 * sum(lengths) * k * n,
            bytes=2.0 * (sum(lengths) * (k + n) + sum(map(bool, lengths)) * k * n),
        ),
        tags=frozenset({tag}),
        facts={"segments": len(lengths), "rows": sum(lengths), "k": k, "n": n},
    )
    for transposed in (False, True)
    for lengths, k, n, tag in _SIZES
)
