"""One call of ``attention`` or ``BatchAttention``, as the backend under test and as a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import (
    BatchAttention,
    BlockSparse,
    DTypes,
    GraphLimits,
    Paged,
    Ragged,
    VariableBlocks,
    attention,
)
from attnhub.attn.problem import AttentionProblem
from attnhub.testing.attention_inputs import Packed, Request, pack, rows_of
from attnhub.testing.attention_variants import params_of, scales_of, variant_of
from attnhub.testing.cases import Results, seed_of
from attnhub.testing.generators import poison_, random_tensor, seeded

#: Requests and rows of q that a graph has room for past those of the batch.
_SPARE_REQUESTS, _SPARE_TOKENS = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseCall:
    """``attention`` of tensors of ``size`` (batch, qo_len, kv_len); batch 0: none."""

    problem: AttentionProblem
    size: tuple[int, int, int]
    which: int
    device: torch.device

    def __str__(self) -> str:
        batch, n, m = self.size
        return f"batch {batch or 'none'}, {n} queries, {m} keys"

    def run(self) -> Results:
        """The call itself."""
        return self._call(getattr(torch, self.problem.out_dtype))

    def expect(self) -> Results:
        """The same with a float32 output."""
        return self._call(torch.float32)

    def _call(self, out_dtype: torch.dtype) -> Results:
        p, (batch, n, m) = self.problem, self.size
        generator = seeded(seed_of(p) + n)
        lead = (batch,) if batch else ()

        def rows(length: int, heads: int, dim: int, dtype: str) -> Tensor:
            shape = (*lead, length, heads, dim)
            x = random_tensor(shape, getattr(torch, dtype), self.device, generator)
            return rows_of(x, strided=self.which == 1)

        q = rows(n, p.num_qo_heads, p.head_dim_qk, p.q_dtype)
        k = rows(m, p.num_kv_heads, p.head_dim_qk, p.kv_dtype)
        v = rows(m, p.num_kv_heads, p.head_dim_vo, p.kv_dtype)
        mask = None
        if p.mask == "bool":  # one for all, or one for each of the batch
            shape = (n, m) if self.which else (*lead, n, m)
            mask = (torch.rand(shape, generator=generator) < 0.6).to(self.device)
        variant = variant_of(p.features, self.which)
        out = torch.empty(*q.shape[:-1], p.head_dim_vo, dtype=out_dtype, device=self.device)
        outputs = attention(
            q,
            k,
            v,
            variant=variant,
            mask=mask,
            scales=scales_of(p, self.which, self.device),
            params=params_of(p, self.device),
            out=poison_(out),
            return_lse=variant.softmax,
        )
        return _named(outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """One batch through ``BatchAttention``; with ``graph``, planned anew between two runs."""

    problem: AttentionProblem
    requests: Sequence[Request]
    which: int
    device: torch.device

    def run(self) -> Results:
        """The call itself."""
        packed = self._pack(self.requests)
        if self.problem.graph:
            return self._replay(packed)
        attn = self._construct(
            getattr(torch, self.problem.out_dtype), deterministic=self.problem.deterministic
        )
        self._plan(attn, packed)
        asked, got = str(self.problem).partition(": ")[2], attn.explain().problem
        assert asked == got, f"the call is {got}, but the case is {asked}"
        out = self._out(packed.q)
        return _named(attn.run(packed.q, packed.kv, out=out, **self._options()))

    def expect(self) -> Results:
        """The same with a float32 output, without a graph, whatever it costs."""
        packed = self._pack(self.requests)
        attn = self._construct(torch.float32, deterministic=False)
        self._plan(attn, packed)
        out = self._out(packed.q, torch.float32)
        found = dict(_named(attn.run(packed.q, packed.kv, out=out, **self._options())))
        if self.problem.graph:  # rows past the batch
            empty = {"out": 0.0, "lse": -math.inf}
            for name, x in found.items():
                rest = x.new_full((_SPARE_TOKENS, *x.shape[1:]), empty[name])
                found[name] = torch.cat([x, rest])
        return found

    def parts(self) -> list[tuple[str, slice, Callable[[], Results]]]:
        """Each request alone, with its rows in the whole."""
        found: list[tuple[str, slice, Callable[[], Results]]] = []
        start = 0
        for i, request in enumerate(self.requests):
            stop = start + request.q.shape[0]
            alone = BatchCall(
                problem=self.problem, requests=[request], which=self.which, device=self.device
            )
            if stop > start:
                found.append((f"request {i} alone", slice(start, stop), alone.run))
            start = stop
        return found

    def _replay(self, packed: Packed) -> Results:
        """Plan and run the first request, then plan the whole batch and run, or replay, that."""
        limits = GraphLimits(
            max_batch=len(self.requests) + _SPARE_REQUESTS,
            max_qo_tokens=packed.q.shape[0] + _SPARE_TOKENS,
            max_pages=packed.metadata.indices.numel() + 1 if self.problem.kv == "paged" else 0,
            max_mask_bytes=packed.mask.numel() if isinstance(packed.mask, Tensor) else 0,
            offsets=self.problem.offsets,
        )
        attn = self._construct(
            getattr(torch, self.problem.out_dtype),
            deterministic=self.problem.deterministic,
            graph=limits,
        )
        q = rows_of(packed.q, strided=False, spare=_SPARE_TOKENS)
        # Made before the capture: a graph cannot hold copies from the host.
        out, options = self._out(q), self._options()
        self._plan(attn, self._pack(self.requests[:1]))
        attn.run(q, packed.kv, out=out, **options)
        if self.device.type == "cpu":
            self._plan(attn, packed)
            return _named(attn.run(q, packed.kv, out=poison_(out), **options))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = _named(attn.run(q, packed.kv, out=out, **options))
        self._plan(attn, packed)
        for x in found.values():
            poison_(x)
        graph.replay()
        return found

    def _pack(self, batch: Sequence[Request]) -> Packed:
        second = self.which == 1
        generator = seeded(seed_of(self.problem))
        return pack(self.problem, batch, self.device, generator, strided=second, block_mask=second)

    def _out(self, q: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        shape = (*q.shape[:-1], self.problem.head_dim_vo)
        dtype = dtype or getattr(torch, self.problem.out_dtype)
        return poison_(torch.empty(shape, dtype=dtype, device=self.device))

    def _construct(
        self, out: torch.dtype, *, deterministic: bool, graph: GraphLimits | None = None
    ) -> BatchAttention:
        p = self.problem
        if p.kv == "paged":
            kv: Any = Paged(p.page_size or 1, p.layout)
        elif p.kv == "block_sparse" and p.block is not None:
            kv = BlockSparse(*p.block, p.layout)
        else:
            kv = (VariableBlocks if p.kv == "variable_blocks" else Ragged)(p.layout)
        return BatchAttention(
            p.num_qo_heads,
            p.num_kv_heads,
            (p.head_dim_qk, p.head_dim_vo),
            DTypes(p.q_dtype, p.kv_dtype, out),
            kv,
            variant=variant_of(p.features, self.which),
            device=self.device,
            graph=graph,
            deterministic=deterministic,
        )

    def _plan(self, attn: BatchAttention, packed: Packed) -> None:
        """Parameters come with the plan in one call and with the run in the other; so do bounds."""
        extra: dict[str, Any] = dict(packed.offsets)
        if self.which == 1:
            extra["params"] = params_of(self.problem, self.device)
            extra["max_qo_len"] = max((r.q.shape[0] for r in self.requests), default=0)
            extra["max_kv_len"] = max((r.k.shape[0] for r in self.requests), default=0)
        attn.plan(packed.qo_indptr, packed.metadata, mask=packed.mask, **extra)

    def _options(self) -> dict[str, Any]:
        """What ``run()`` takes besides tensors."""
        return {
            "scales": scales_of(self.problem, self.which, self.device),
            "params": {} if self.which == 1 else params_of(self.problem, self.device),
            "return_lse": "softmax_off" not in self.problem.features,
        }


def _named(outputs: Any) -> Results:
    if isinstance(outputs, Tensor):
        return {"out": outputs}
    out, lse = outputs
    return {"out": out, "lse": lse}
