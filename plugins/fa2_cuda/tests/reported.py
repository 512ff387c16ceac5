"""Batches in which users met faults, for the kernel emulator, and how results are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import attnhub
from attnhub.attn import DTypes, Paged, PagedKV, Ragged, RaggedKV
from attnhub.plugin import Variant
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import (
    indptr,
    page_table,
    paged_cache,
    poison_,
    random_tensor,
    seeded,
)

CPU = torch.device("cpu")
CAUSAL = Variant(causal=True)
Lengths = Sequence[tuple[int, int]]
Result = tuple[Tensor, Tensor]


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return random_tensor(shape, dtype, CPU, seeded(seed))


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Batch:
    """Random requests of these ``(qo_len, kv_len)``; slots that nobody owns hold NaN.

    With page 0 their keys are ragged.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        heads: tuple[int, int] = (8, 2),
        dim: int = 128,
        page: int = 16,
        kv_dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> None:
        self.heads, self.dim, self.kv_dtype = heads, dim, kv_dtype
        self.qo_lens, self.kv_lens = [n for n, _ in lengths], [m for _, m in lengths]
        self.q = normal(sum(self.qo_lens), heads[0], dim, seed=seed)
        rows = sum(self.kv_lens)
        self.k, self.v = (normal(rows, heads[1], dim, seed=seed + i).to(kv_dtype) for i in (1, 2))
        self.qo_indptr = indptr(self.qo_lens)
        self.layout: Any = Paged(page) if page else Ragged()
        self.kv: Any = tuple(
            torch.cat([x, poison_(torch.empty_like(x[:1]))]) if rows else x
            for x in (self.k, self.v)
        )
        self.metadata: Any = RaggedKV(indptr(self.kv_lens))
        if page:
            table = page_table(self.kv_lens, page, generator=seeded(seed))
            self.kv = paged_cache(self.k, self.v, self.kv_lens, table)
            self.metadata = PagedKV(table.indptr, table.indices, table.last_page_len)

    @property
    def limits(self) -> dict[str, int]:
        """Of a graph with more room than this batch takes."""
        pages = self.metadata.indices.numel() + 2 if isinstance(self.metadata, PagedKV) else 0
        rows, size = sum(self.qo_lens) + 3, len(self.qo_lens) + 2
        return {"max_batch": size, "max_qo_tokens": rows, "max_pages": pages}

    def attention(
        self, backend: str = "fa2_cuda", variant: Variant = CAUSAL, **options: Any
    ) -> attnhub.BatchAttention:
        """For batches of this kind; the reference's outputs are float32."""
        out = torch.float32 if backend == "reference" else torch.bfloat16
        return attnhub.BatchAttention(
            *self.heads,
            self.dim,
            DTypes(torch.bfloat16, self.kv_dtype, out),
            self.layout,
            variant=variant,
            device="cpu",
            backend=backend,
            **options,
        )

    def run(self, attn: attnhub.BatchAttention, *, spare: int = 0, **options: Any) -> Result:
        """Run what was planned into a poisoned output, with spare rows of queries."""
        q = torch.cat([self.q, self.q.new_ones(spare, *self.q.shape[1:])])
        out = torch.full(q.shape, math.nan, dtype=attn._dtypes[2])
        return attn.run(q, self.kv, out=out, return_lse=True, **options)

    def expect(self, variant: Variant = CAUSAL, **plan: Any) -> Result:
        """From the reference."""
        attn = self.attention("reference", variant)
        attn.plan(self.qo_indptr, self.metadata, **plan)
        return self.run(attn)

    def check(self, variant: Variant = CAUSAL, **plan: Any) -> Result:
        """Plan, run and compare with the reference."""
        attn = self.attention(variant=variant)
        attn.plan(self.qo_indptr, self.metadata, **plan)
        got = self.run(attn)
        close(got, self.expect(variant, **plan))
        return got


def close(got: Result, expected: Result) -> None:
    for x, wanted, kind in zip(got, expected, ("output", "lse"), strict=True):
        assert_close(x, wanted, dtype=torch.bfloat16, kind=kind, name=kind)


def equal(got: Result, expected: Result) -> None:
    for x, wanted in zip(got, expected, strict=True):
        assert torch.equal(x, wanted)


def unseen(got: Result, rows: slice) -> None:
    """What rows hold that see no key."""
    assert (got[0][rows] == 0).all()
    assert (got[1][rows] == -math.inf).all()
