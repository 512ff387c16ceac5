"""Inputs of latent attention: the sizes that speed is judged by; ``calls`` for any problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnhub.attn import DTypes, PagedKV
from attnhub.core.problem import Extent, Work
from attnhub.core.workload import Workload
from attnhub.mla.batch_mla import BatchMLA
from attnhub.mla.calls import calls
from attnhub.mla.problem import HEAD_DIM, MLAProblem

__all__ = ["calls", "mla"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Equal requests: ``batch`` of them with ``qo_len`` queries and ``kv_len`` keys each."""

    batch: int
    qo_len: int
    kv_len: int
    heads: int = 128
    dims: tuple[int, int] = HEAD_DIM
    page_size: int = 64
    kv_dtype: str = "bfloat16"

    @property
    def dtype(self) -> DTypes:
        return DTypes(q="bfloat16", kv=self.kv_dtype, out="bfloat16")

    @property
    def name(self) -> str:
        sizes = f"B{self.batch}-Q{self.qo_len}-L{self.kv_len}-H{self.heads}"
        return f"{sizes}-page{self.page_size}-{self.kv_dtype}"

    def work(self) -> Work:
        """Of the exact sizes: a problem's own are rounded up to buckets."""
        problem = MLAProblem.of(
            "cpu",
            num_heads=self.heads,
            head_dim=self.dims,
            dtype=self.dtype,
            page_size=self.page_size,
        )
        exact = Extent(batch=self.batch, qo_len=self.qo_len, kv_len=self.kv_len)
        return replace(problem, extent=exact).work()

    def make(self, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        """Decode, append or prefill over a shuffled page table; one tensor holds both caches."""

        def random(*shape: int) -> torch.Tensor:
            x = torch.randn(shape, generator=generator, device=generator.device)
            return x.to(device, torch.bfloat16)

        tokens, pages = self.batch * self.qo_len, -(-self.kv_len // self.page_size)
        q_nope, q_pe = (random(tokens, self.heads, dim) for dim in self.dims)
        cache = random(self.batch * pages, self.page_size, sum(self.dims))
        caches = cache.to(getattr(torch, self.kv_dtype)).split(list(self.dims), -1)
        order = torch.randperm(self.batch * pages, generator=generator, device=generator.device)
        last = torch.full((self.batch,), self.kv_len - (pages - 1) * self.page_size)
        table = PagedKV(self._indptr(pages), order.cpu().int(), last.int())
        mla = BatchMLA(
            self.heads,
            self.dtype,
            head_dim=self.dims,
            page_size=self.page_size,
            scale=(128 + 64) ** -0.5,
            device=device,
        )
        mla.plan(self._indptr(self.qo_len), table)
        out = torch.empty_like(q_nope)
        return lambda: mla.run(q_nope, q_pe, (caches[0], caches[1]), out=out)

    def _indptr(self, step: int) -> torch.Tensor:
        return torch.arange(0, (self.batch + 1) * step, step, dtype=torch.int32)


_SMALL = (
    _Case(batch=3, qo_len=1, kv_len=21, heads=4, dims=(32, 16), page_size=5),
    _Case(batch=2, qo_len=4, kv_len=9, heads=4, dims=(32, 16), page_size=1),
    _Case(batch=2, qo_len=1, kv_len=9, heads=2, dims=(32, 16), kv_dtype="float8_e4m3fn"),
)
#: DeepSeek's decode batches; 16 heads are one of eight ranks, 2 queries a speculated token.
_H200 = (
    *(_Case(batch=b, qo_len=1, kv_len=n) for b, n in ((1, 65536), (64, 8192), (128, 2048))),
    _Case(batch=768, qo_len=1, kv_len=1024),
    _Case(batch=128, qo_len=1, kv_len=4096, heads=16),
    _Case(batch=64, qo_len=1, kv_len=8192, page_size=1),
    _Case(batch=64, qo_len=1, kv_len=8192, kv_dtype="float8_e4m3fn"),
    _Case(batch=64, qo_len=2, kv_len=8192),
    _Case(batch=1, qo_len=512, kv_len=8192),
)

mla = tuple(
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
