"""Inputs of attention: small ones for tests, and the sizes that speed is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnhub.attn.batch_attention import BatchAttention
from attnhub.attn.functional import attention as dense_attention
from attnhub.attn.kv import Paged, PagedKV, Ragged, RaggedKV
from attnhub.attn.problem import AttentionProblem
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.variant import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Equal requests: ``batch`` of them with ``qo_len`` queries and ``kv_len`` keys each."""

    kind: str
    batch: int
    qo_len: int
    kv_len: int
    heads: tuple[int, int] = (32, 8)
    dim: int = 128
    page_size: int = 16
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        page = f"-page{self.page_size}" if self.kind == "paged" else ""
        hq, hkv = self.heads
        sizes = f"B{self.batch}-Q{self.qo_len}-L{self.kv_len}"
        return f"{self.kind}{page}-{sizes}-{hq}x{hkv}-D{self.dim}"

    def work(self) -> Work:
        dtype = str(self.dtype).removeprefix("torch.")
        return AttentionProblem.of(
            "cpu",
            kv=Paged(self.page_size) if self.kind == "paged" else Ragged(),
            num_qo_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.dim,
            dtype=dtype,
            variant=Variant(causal=True),
            batch=self.batch,
            qo_len=self.qo_len,
            kv_len=self.kv_len,
        ).work()

    def make(self, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        maker = {"dense": self._dense, "ragged": self._ragged, "paged": self._paged}[self.kind]
        return maker(device, generator)

    def _random(
        self, device: torch.device, generator: torch.Generator, *shape: int
    ) -> torch.Tensor:
        x = torch.randn(shape, generator=generator, device=generator.device)
        return x.to(device, self.dtype)

    def _dense(self, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        (hq, hkv), dim = self.heads, self.dim
        q = self._random(device, generator, self.batch, self.qo_len, hq, dim)
        k = self._random(device, generator, self.batch, self.kv_len, hkv, dim)
        v = self._random(device, generator, self.batch, self.kv_len, hkv, dim)
        out = torch.empty_like(q)
        return lambda: dense_attention(q, k, v, causal=True, out=out)

    def _ragged(self, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        (hq, hkv), dim = self.heads, self.dim
        q = self._random(device, generator, self.batch * self.qo_len, hq, dim)
        k = self._random(device, generator, self.batch * self.kv_len, hkv, dim)
        v = self._random(device, generator, self.batch * self.kv_len, hkv, dim)
        attn = self._planner(Ragged(), device)
        attn.plan(self._indptr(self.qo_len), RaggedKV(self._indptr(self.kv_len)))
        out = torch.empty_like(q)
        return lambda: attn.run(q, (k, v), out=out)

    def _paged(self, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        (hq, hkv), dim, size = self.heads, self.dim, self.page_size
        pages = -(-self.kv_len // size)
        q = self._random(device, generator, self.batch * self.qo_len, hq, dim)
        cache = self._random(device, generator, self.batch * pages, 2, size, hkv, dim)
        order = torch.randperm(self.batch * pages, generator=generator, device=generator.device)
        last = torch.full((self.batch,), self.kv_len - (pages - 1) * size, dtype=torch.int32)
        attn = self._planner(Paged(size), device)
        table = PagedKV(self._indptr(pages), order.cpu().to(torch.int32), last)
        attn.plan(self._indptr(self.qo_len), table)
        out = torch.empty_like(q)
        return lambda: attn.run(q, cache, out=out)

    def _planner(self, kv: Paged | Ragged, device: torch.device) -> BatchAttention:
        variant = Variant(causal=True)
        hq, hkv = self.heads
        return BatchAttention(hq, hkv, self.dim, self.dtype, kv, variant=variant, device=device)

    def _indptr(self, step: int) -> torch.Tensor:
        return torch.arange(0, (self.batch + 1) * step, max(step, 1), dtype=torch.int32)


#: Small cases cover each kind; the others are the sizes of the peers' published tables.
_SMALL = (
    _Case(kind="dense", batch=2, qo_len=5, kv_len=9, heads=(4, 2), dim=16),
    _Case(kind="ragged", batch=3, qo_len=4, kv_len=7, heads=(4, 1), dim=16),
    _Case(kind="paged", batch=3, qo_len=1, kv_len=21, heads=(4, 2), dim=16, page_size=5),
)
_H200 = (
    *(_Case(kind="ragged", batch=b, qo_len=n, kv_len=n) for b, n in ((16, 1024), (4, 4096))),
    _Case(kind="dense", batch=4, qo_len=4096, kv_len=4096, heads=(16, 16)),
    *(
        _Case(kind="paged", batch=b, qo_len=1, kv_len=n)
        for b, n in ((1, 32768), (16, 8192), (64, 4096), (256, 2048))
    ),
)

attention = tuple(
    Workload(
        name=case.name,
        make=case.make,
        work=case.work(),
        tags=frozenset({tag}),
        facts={"batch": case.batch, "qo_len": case.qo_len, "kv_len": case.kv_len},
    )
    for tag, cases in (("small", _SMALL), ("h200", _H200))
    for case in cases
)
