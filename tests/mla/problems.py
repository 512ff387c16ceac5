"""Small random problems of latent attention: facts, tensors, and what the oracle makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnhub import DTypes, GraphLimits, PagedKV
from attnhub.mla import BatchMLA, MLAScales
from tests.oracle.mla import MlaOracleProblem, MlaRequest, attend_mla

FLOATS = ("float32", "float16", "bfloat16")
FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallMLA:
    """``lens`` holds (qo_len, kv_len) per request; every number follows from the seed."""

    seed: int = 0
    lens: tuple[tuple[int, int], ...] = ((1, 5), (3, 4))
    heads: int = 2
    dims: tuple[int, int] = (8, 4)
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32")
    page_size: int = 4
    storage: str = "joined"
    spare_pages: int = 1
    scale: float = 0.7
    causal: bool = True
    scales: str = "none"

    @property
    def tokens(self) -> int:
        return sum(n for n, _ in self.lens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensors:
    """What ``plan()`` and ``run()`` take."""

    qo_indptr: torch.Tensor
    table: PagedKV
    q_nope: torch.Tensor
    q_pe: torch.Tensor
    kv: tuple[torch.Tensor, torch.Tensor]
    scales: MLAScales


@st.composite
def problems(draw: st.DrawFn) -> SmallMLA:
    """Problems, simplest first."""

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    q = pick(*FLOATS)
    kv = pick(q, q, *FLOATS, *FP8)
    request = st.tuples(st.integers(0, 5), st.integers(0, 10))
    return SmallMLA(
        seed=draw(st.integers(0, 10_000)),
        lens=tuple(draw(st.lists(request, max_size=4))),
        heads=pick(1, 2, 3, 5),
        dims=pick((4, 2), (8, 4), (1, 1), (2, 8), (16, 3)),
        dtypes=(q, kv, pick("float32", q, *FLOATS)),
        page_size=pick(1, 2, 3, 5, 16),
        storage=pick("joined", "separate", "gaps", "transposed"),
        spare_pages=pick(0, 1, 3),
        scale=pick(1.0, 0.07, 0.7),
        causal=pick(True, False),
        scales=pick("none", "number", "tensor") if kv not in FP8 else pick("number", "tensor"),
    )


def make(problem: SmallMLA) -> Tensors:
    """The problem's tensors: a cache of NaN in which only the slots of a request are written."""
    size = problem.page_size
    owned = [-(-kv_len // size) for _, kv_len in problem.lens]
    pages = sum(owned) + problem.spare_pages
    order = np.random.default_rng(problem.seed).permutation(pages)[: sum(owned)]
    indptr = [0, *accumulate(owned)]
    caches = _empty(problem, pages)
    for b, (_, kv_len) in enumerate(problem.lens):
        for cache, rows in zip(caches, _rows(problem, b), strict=True):
            for j in range(kv_len):
                cache[order[indptr[b] + j // size], j % size] = rows[j]
    last = [(kv_len - 1) % size + 1 if kv_len else 0 for _, kv_len in problem.lens]
    q_nope, q_pe = _queries(problem)
    numbers = scale_numbers(problem)
    tensors = [torch.full(shape, n) for n, shape in zip(numbers, ((), (1,)), strict=True)]
    return Tensors(
        qo_indptr=ints(0, *accumulate(n for n, _ in problem.lens)),
        table=PagedKV(ints(*indptr), ints(*order), ints(*last)),
        q_nope=q_nope,
        q_pe=q_pe,
        kv=caches,
        scales=MLAScales(*(tensors if problem.scales == "tensor" else numbers)),
    )


def batch_mla(problem: SmallMLA, graph: GraphLimits | None = None, **changes: Any) -> BatchMLA:
    """The constructor call that says the same as the problem."""
    facts: dict[str, Any] = {
        "head_dim": problem.dims,
        "page_size": problem.page_size,
        "scale": problem.scale,
        "causal": problem.causal,
        "device": "cpu",
        "graph": graph,
    }
    return BatchMLA(problem.heads, DTypes(*problem.dtypes), **facts | changes)


def expected(problem: SmallMLA) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle's output ``[tokens, heads, dim]`` and LSE ``[tokens, heads]``, float64."""
    q_nope, q_pe = (x.double().numpy() for x in _queries(problem))
    stop = [0, *accumulate(n for n, _ in problem.lens)]
    requests = []
    for b in range(len(problem.lens)):
        rows = slice(stop[b], stop[b + 1])
        ckv, kpe = (
            x.double().numpy() * s
            for x, s in zip(_rows(problem, b), scale_numbers(problem), strict=True)
        )
        requests.append(MlaRequest(q_nope=q_nope[rows], q_pe=q_pe[rows], ckv=ckv, kpe=kpe))
    results = attend_mla(
        MlaOracleProblem(requests=tuple(requests), scale=problem.scale, causal=problem.causal)
    )
    out = [np.empty((0, problem.heads, problem.dims[0])), *(r.out for r in results)]
    lse = [np.empty((0, problem.heads)), *(r.lse for r in results)]
    return torch.from_numpy(np.concatenate(out)), torch.from_numpy(np.concatenate(lse))


def scale_numbers(problem: SmallMLA) -> tuple[float, float]:
    """The scales of ckv and kpe; powers of two times 3, so float32 holds them exactly."""
    return (1.0, 1.0) if problem.scales == "none" else (0.75, 1.5)


def ints(*values: int) -> torch.Tensor:
    """An int32 tensor."""
    return torch.tensor([int(v) for v in values], dtype=torch.int32)


def _normal(problem: SmallMLA, part: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    values = np.random.default_rng((problem.seed, part)).standard_normal(shape)
    return torch.empty(shape, dtype=getattr(torch, dtype)).copy_(torch.from_numpy(values))


def _queries(problem: SmallMLA) -> tuple[torch.Tensor, torch.Tensor]:
    q_nope, q_pe = (
        _normal(problem, part, (problem.tokens, problem.heads, dim), problem.dtypes[0])
        for part, dim in enumerate(problem.dims)
    )
    return q_nope, q_pe


def _rows(problem: SmallMLA, b: int) -> list[torch.Tensor]:
    return [
        _normal(problem, 2 + 2 * b + part, (problem.lens[b][1], dim), problem.dtypes[1])
        for part, dim in enumerate(problem.dims)
    ]


def _empty(problem: SmallMLA, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    size, (ckv, kpe) = problem.page_size, problem.dims
    dtype = getattr(torch, problem.dtypes[1])

    def poison(*shape: int) -> torch.Tensor:
        return torch.full(shape, torch.nan).to(dtype)

    if problem.storage == "joined":
        joined = poison(pages, size, ckv + kpe)
        return joined[..., :ckv], joined[..., ckv:]
    if problem.storage == "gaps":
        wide = poison(pages + 1, size + 1, ckv + kpe + 2)
        return wide[:pages, :size, 1 : ckv + 1], wide[1:, 1:, ckv + 1 : ckv + kpe + 1]
    if problem.storage == "transposed":
        return poison(size, pages, ckv).transpose(0, 1), poison(size, pages, kpe).transpose(0, 1)
    return poison(pages, size, ckv), poison(pages, size, kpe)
