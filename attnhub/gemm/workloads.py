"""Inputs of the grouped product: adapters and experts for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch

from attnhub.core.calls import Call, Calls, spaced
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.gemm import api
from attnhub.gemm.problem import SegmentGemmProblem

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


#: Rows of each segment, empty ones at both ends and inside, and the matrix of each where the call
#: says so. Matrix 1 is nobody's, matrix 4 belongs to empty segments only: both are NaN.
_SEGMENTS, _MATRICES = (0, 3, 0, 17, 1, 0), (4, 3, 4, 0, 3, 4)
_UNCOVERED = 2


def _calls(
    problem: SegmentGemmProblem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    """Rows past the last segment are NaN in ``x``, and must be zero in ``out``."""
    dtype, rows = getattr(torch, problem.dtype), sum(_SEGMENTS) + _UNCOVERED

    def tensor(drawn: torch.Tensor) -> torch.Tensor:
        x = drawn.to(device, dtype)
        return x if problem.contiguous else spaced(x)

    x = torch.randn(rows, problem.k, generator=generator)
    x[-_UNCOVERED:] = math.nan
    inner = (problem.n, problem.k) if problem.transposed else (problem.k, problem.n)
    matrices = _MATRICES if problem.indexed else range(len(_SEGMENTS))
    used = {matrix for matrix, length in zip(matrices, _SEGMENTS, strict=True) if length}
    weights = torch.full((len(_SEGMENTS), *inner), math.nan)
    for matrix in sorted(used):
        weights[matrix] = torch.randn(inner, generator=generator)
    left, right = tensor(x), tensor(weights)
    indptr = torch.tensor([0, *accumulate(_SEGMENTS)], dtype=torch.int32, device=device)
    chosen = torch.tensor(_MATRICES, dtype=torch.int32, device=device) if problem.indexed else None

    def run(rows: int = rows, segments: int = len(_SEGMENTS)) -> torch.Tensor:
        return api.segment_gemm(
            left[:rows],
            right,
            indptr[: segments + 1],
            weight_indices=None if chosen is None else chosen[:segments],
            transposed=problem.transposed,
            out=tensor(torch.full((rows, problem.n), math.nan)),
        )

    yield Call(name="segments", run=run, grows=True)
    yield Call(name="no segments", run=lambda: run(_UNCOVERED, 0), grows=True)
    yield Call(name="no rows", run=lambda: run(0, 1), grows=True)


calls = {"gemm.segment_gemm": Calls(build=_calls, base={"dtype": "float32"})}
