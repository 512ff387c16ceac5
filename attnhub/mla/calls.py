"""Calls of ``BatchMLA`` for any of its problems: small batches over poisoned pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import DTypes, GraphLimits, PagedKV
from attnhub.attn.problem import FP8
from attnhub.core.calls import Call, Calls, Run, spaced
from attnhub.core.device import Device
from attnhub.mla.batch_mla import BatchMLA
from attnhub.mla.inputs import MLAScales
from attnhub.mla.problem import MLAProblem

Lengths = tuple[tuple[int, int], ...]

#: Batches of (qo_len, kv_len): one with empty requests of every sort and with more queries than
#: keys, decode, decode of four speculated tokens, and batches in which something is not there at
#: all. On a GPU the others go on with what passes the tiles of a kernel.
_BATCHES: Mapping[str, tuple[Lengths, Lengths]] = {
    "mixed": (((3, 9), (0, 4), (1, 0), (1, 17), (7, 5), (0, 0), (2, 33)), ((130, 300), (64, 64))),
    "decode": (((1, 5), (1, 0), (1, 40), (1, 1)), ((1, 1500),)),
    "four each": (((4, 5), (4, 0), (4, 40), (4, 3)), ((4, 1500),)),
    "no queries": (((0, 4), (0, 0)), ()),
    "no keys": (((3, 0), (1, 0)), ()),
    "no requests": ((), ()),
}
#: Not that of any head dim, so that a kernel that makes one up is seen.
_SCALE = 0.1
#: Requests, query rows and pages that a graph has room for past those of the batch.
_SPARE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """``pages`` holds the page ids of each request, ``cut`` makes tensors parts of larger ones."""

    problem: MLAProblem
    lengths: Lengths
    q: tuple[Tensor, Tensor]
    caches: tuple[Tensor, Tensor]
    pages: Sequence[Tensor]
    scales: MLAScales
    cut: bool
    lse: bool

    @classmethod
    def of(
        cls,
        problem: MLAProblem,
        lengths: Lengths,
        device: torch.device,
        generator: torch.Generator,
        *,
        cut: bool,
        lse: bool,
    ) -> _Batch:
        size, dims = problem.page_size, (problem.head_dim_ckv, problem.head_dim_kpe)
        counts = [-(-kv_len // size) for _, kv_len in lengths]
        order = torch.randperm(sum(counts) + _SPARE, generator=generator)
        pages = order[: sum(counts)].split(counts)
        rows = torch.full((len(order) * size, sum(dims)), math.nan)
        for (_, kv_len), ids in zip(lengths, pages, strict=True):
            slots = (ids[:, None] * size + torch.arange(size)).flatten()[:kv_len]
            rows[slots] = torch.randn(kv_len, sum(dims), generator=generator)
        cache = rows.view(-1, size, sum(dims)).to(device, getattr(torch, problem.kv_dtype))
        ckv, kpe = cache.split(list(dims), -1)
        tokens = sum(qo_len for qo_len, _ in lengths)
        q = torch.randn(tokens, problem.num_heads, sum(dims), generator=generator)
        q_nope, q_pe = q.to(device, getattr(torch, problem.q_dtype)).split(list(dims), -1)
        scales = MLAScales(ckv=0.7, kpe=1.5)
        if cut:
            one = torch.ones(1, device=device)
            scales = MLAScales(ckv=1.2 * one[0], kpe=0.6 * one)
        else:
            ckv, kpe, q_nope, q_pe = (x.contiguous() for x in (ckv, kpe, q_nope, q_pe))
        return cls(
            problem=problem,
            lengths=lengths,
            q=(q_nope, q_pe),
            caches=(ckv, kpe),
            pages=pages,
            scales=scales,
            cut=cut,
            lse=lse,
        )

    def run(self) -> dict[str, Tensor]:
        """The call itself."""
        return self._replay() if self.problem.graph else self._once(self.problem.out_dtype)

    def expect(self) -> dict[str, Tensor]:
        """The same with a float32 output, and what a graph gives for rows past the batch."""
        found = self._once("float32")
        if self.problem.graph:
            empty = {"out": 0.0, "lse": -math.inf}
            for name, x in found.items():
                rest = x.new_full((_SPARE, *x.shape[1:]), empty[name])
                found[name] = torch.cat([x, rest])
        return found

    def parts(self) -> Iterator[tuple[str, slice, Run]]:
        """Each request alone, with its rows in the whole."""
        stop = 0
        for i, (qo_len, _) in enumerate(self.lengths):
            start, stop = stop, stop + qo_len
            if qo_len:
                yield f"request {i} alone", slice(start, stop), self._alone(i, start, stop).run

    def _alone(self, request: int, start: int, stop: int) -> _Batch:
        return replace(
            self,
            lengths=(self.lengths[request],),
            q=(self.q[0][start:stop], self.q[1][start:stop]),
            pages=[self.pages[request]],
        )

    def _once(self, out_dtype: str) -> dict[str, Tensor]:
        mla = self._construct(out_dtype, None)
        self._plan(mla, len(self.lengths))
        return self._run(mla, self.q, self._out(self.q[0], out_dtype))

    def _replay(self) -> dict[str, Tensor]:
        """Plan and run the first request, then plan the whole batch and run, or replay, that."""
        p = self.problem
        limits = GraphLimits(
            max_batch=len(self.lengths) + _SPARE,
            max_qo_tokens=len(self.q[0]) + _SPARE,
            max_pages=sum(map(len, self.pages)) + _SPARE,
        )
        mla = self._construct(p.out_dtype, limits)
        q_nope, q_pe = (
            torch.cat([x, x.new_full((_SPARE, *x.shape[1:]), math.nan)]) for x in self.q
        )
        out = self._out(q_nope, p.out_dtype)
        self._plan(mla, 1)
        self._run(mla, (q_nope, q_pe), out)
        if out.device.type == "cpu":
            self._plan(mla, len(self.lengths))
            return self._run(mla, (q_nope, q_pe), out.fill_(math.nan))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self._run(mla, (q_nope, q_pe), out)
        self._plan(mla, len(self.lengths))
        for x in found.values():
            x.fill_(math.nan)
        graph.replay()
        return found

    def _construct(self, out_dtype: str, graph: GraphLimits | None) -> BatchMLA:
        p = self.problem
        return BatchMLA(
            p.num_heads,
            DTypes(p.q_dtype, p.kv_dtype, out_dtype),
            head_dim=(p.head_dim_ckv, p.head_dim_kpe),
            page_size=p.page_size,
            scale=_SCALE,
            causal="causal" in p.features,
            device=self.q[0].device,
            graph=graph,
            deterministic=p.deterministic and out_dtype == p.out_dtype,
        )

    def _plan(self, mla: BatchMLA, requests: int) -> None:
        """Plan the first requests; bounds are given where tensors are cut."""
        lengths, pages = self.lengths[:requests], self.pages[:requests]
        where = self.q[0].device if self.problem.metadata == "device" else torch.device("cpu")
        size = self.problem.page_size

        def ints(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=where)

        def starts(counts: Sequence[int]) -> Tensor:
            return ints([sum(counts[:i]) for i in range(len(counts) + 1)])

        table = PagedKV(
            starts([len(ids) for ids in pages]),
            torch.cat([torch.empty(0, dtype=torch.int32), *pages]).to(where, torch.int32),
            ints([(kv_len - 1) % size + 1 if kv_len else 0 for _, kv_len in lengths]),
        )
        bounds: dict[str, Any] = {}
        if self.cut:
            bounds["max_qo_len"] = max((qo_len for qo_len, _ in lengths), default=0)
            bounds["max_kv_len"] = max((kv_len for _, kv_len in lengths), default=0)
        mla.plan(starts([qo_len for qo_len, _ in lengths]), table, **bounds)

    def _out(self, like: Tensor, dtype: str) -> Tensor:
        out = torch.full(like.shape, math.nan, dtype=getattr(torch, dtype), device=like.device)
        return spaced(out) if self.cut else out

    def _run(self, mla: BatchMLA, q: tuple[Tensor, Tensor], out: Tensor) -> dict[str, Tensor]:
        if not self.lse:
            return {"out": mla.run(*q, self.caches, scales=self.scales, out=out)}
        found = mla.run(*q, self.caches, scales=self.scales, out=out, return_lse=True)
        return dict(zip(("out", "lse"), found, strict=True))


def _build(problem: MLAProblem, device: torch.device, generator: torch.Generator) -> Iterator[Call]:
    for i, (name, (short, long)) in enumerate(_BATCHES.items()):
        lengths = short if device.type == "cpu" else short + long
        batch = _Batch.of(problem, lengths, device, generator, cut=i == 1, lse=i < 2)
        parts = batch.parts() if problem.deterministic and not problem.graph else ()
        yield Call(
            name=name, run=batch.run, expect=batch.expect, row=_row(problem), parts=tuple(parts)
        )


def _row(problem: MLAProblem) -> torch.dtype:
    """The coarsest dtype that operands or output are rounded to; a float8 cache is widened."""
    used = {problem.q_dtype, problem.out_dtype}
    if problem.kv_dtype not in FP8:
        used.add(problem.kv_dtype)
    names = ("bfloat16", "float16", "float32")
    found: torch.dtype = getattr(torch, next(name for name in names if name in used))
    return found


def _clashes(facts: Mapping[str, Any], device: Device) -> set[str]:
    """A CPU's metadata are the host's; a graph's lie in buffers on its device."""
    found = set()
    if device.type == "cpu" and facts["metadata"] == "device":
        found.add("metadata")
    if device.type != "cpu" and facts["graph"] and facts["metadata"] == "host":
        found |= {"graph", "metadata"}
    return found


calls = {
    "mla": Calls(
        build=_build,
        base={
            "num_heads": 16,
            "head_dim_ckv": 512,
            "head_dim_kpe": 64,
            "q_dtype": "float32",
            "kv_dtype": "float32",
            "out_dtype": "float32",
            "page_size": 5,
        },
        clashes=_clashes,
    )
}
