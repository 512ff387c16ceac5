"""Batches in which users met faults, on a GPU, and what they are in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import attnhub
from attnhub.attn import DTypes, Paged, PagedKV, Ragged, RaggedKV
from attnhub.plugin import Variant
from attnhub.testing.generators import (
    indptr,
    page_table,
    paged_cache,
    random_tensor,
    seeded,
)
from plugins.fa2_cuda.tests.reported import CAUSAL, Lengths, Result

DEVICE = torch.device("cuda:0")
FP8 = torch.float8_e4m3fn
#: Left and right bounds of what a query sees round its own position, -1 for none.
Band = tuple[int, int]
CAUSAL_BAND: Band = (-1, 0)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return random_tensor(shape, dtype, DEVICE, seeded(seed, DEVICE))


def in_float64(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Result:
    """Attention of one request, whose queries see ``[qo_len, kv_len]``, and its LSE."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.float().double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    probs = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", probs, v), lse.T


def in_band(n: int, m: int, band: Band) -> Tensor | None:
    """What queries see that are aligned with the end of the keys."""
    left, right = band
    if band == (-1, -1):
        return None
    distance = torch.arange(m, device=DEVICE) - torch.arange(m - n, m, device=DEVICE)[:, None]
    seen = torch.ones(n, m, dtype=torch.bool, device=DEVICE)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


class Batch:
    """Random requests of these ``(qo_len, kv_len)``; slots that nobody owns hold NaN.

    With page 0 their keys are ragged. Metadata lie on the host.
    """

    def __init__(
        self,
        sizes: Lengths,
        *,
        heads: tuple[int, int] = (8, 2),
        dim: int = 128,
        page: int = 16,
        kv_dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> None:
        self.heads, self.dim, self.kv_dtype = heads, dim, kv_dtype
        self.qo_lens, self.kv_lens = [n for n, _ in sizes], [m for _, m in sizes]
        self.q = normal(sum(self.qo_lens), heads[0], dim, seed=seed)
        rows = (sum(self.kv_lens), heads[1], dim)
        self.k, self.v = (normal(*rows, seed=seed + i, dtype=kv_dtype) for i in (1, 2))
        self.qo_indptr = indptr(self.qo_lens)
        self.layout: Any = Paged(page) if page else Ragged()
        self.metadata: Any = RaggedKV(indptr(self.kv_lens))
        self.kv: Any = (self.k, self.v)
        if page:
            table = page_table(self.kv_lens, page, generator=seeded(seed))
            self.metadata = PagedKV(table.indptr, table.indices, table.last_page_len)
            self.kv = paged_cache(self.k, self.v, self.kv_lens, table, combined=False)

    @property
    def pages(self) -> int:
        """How many the requests own."""
        return self.metadata.indices.numel() if isinstance(self.metadata, PagedKV) else 0

    def attention(self, variant: Variant = CAUSAL, **options: Any) -> attnhub.BatchAttention:
        """For batches of this kind."""
        return attnhub.BatchAttention(
            *self.heads,
            self.dim,
            DTypes(torch.bfloat16, self.kv_dtype, torch.bfloat16),
            self.layout,
            variant=variant,
            device=DEVICE,
            backend="fa2_cuda",
            **options,
        )

    def run(self, attn: attnhub.BatchAttention, **options: Any) -> Result:
        """Run what was planned, into a poisoned output."""
        out = torch.full_like(self.q, math.nan)
        return attn.run(self.q, self.kv, out=out, return_lse=True, **options)

    def planned(self, variant: Variant = CAUSAL, **plan: Any) -> Result:
        """Plan and run, by an object whose results are equal to the bit."""
        attn = self.attention(variant, deterministic=True)
        attn.plan(self.qo_indptr, self.metadata, **plan)
        return self.run(attn)

    def expect(
        self,
        band: Band = CAUSAL_BAND,
        *,
        seen: Sequence[Tensor] | None = None,
        scale: float | None = None,
    ) -> Result:
        """In float64, request by request; ``seen`` are masks instead of a band."""
        factor = scale or 1 / math.sqrt(self.dim)
        found = []
        for i, (n, m) in enumerate(zip(self.qo_lens, self.kv_lens, strict=True)):
            first_q, first_k = sum(self.qo_lens[:i]), sum(self.kv_lens[:i])
            q = self.q[first_q : first_q + n]
            k, v = (x[first_k : first_k + m] for x in (self.k, self.v))
            sees = in_band(n, m, band) if seen is None else seen[i].to(DEVICE)
            found.append(in_float64(q, k, v, sees, factor))
        outs, lses = zip(*found, strict=True)
        return torch.cat(outs), torch.cat(lses)
