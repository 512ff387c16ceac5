"""Wrong results that shapes and dtypes hide: aliasing, autocast, padding, a rounding too many."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from attnhub import BatchAttention, BatchMLA, DTypes, Paged, PagedKV, RaggedKV, Scales, Variant
from attnhub.backends.sdpa import _Decode

CAUSAL = Variant(causal=True)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@BACKENDS
@pytest.mark.parametrize("qo", [(0, 1, 2), (0, 3, 5)], ids=["decode", "prefill"])
def test_the_output_may_be_written_over_the_queries(backend: str, qo: tuple[int, ...]) -> None:
    attn = BatchAttention(4, 2, 8, torch.float32, variant=CAUSAL, device="cpu", backend=backend)
    attn.plan(i32(*qo), RaggedKV(i32(0, 4, 9)))
    q, k, v = normal(qo[-1], 4, 8, seed=0), normal(9, 2, 8, seed=1), normal(9, 2, 8, seed=2)
    want = attn.run(q, (k, v))
    assert torch.equal(attn.run(q, (k, v), out=q), want)
    q, k = normal(2, 3, 2, 8, seed=0), normal(2, 3, 2, 8, seed=1)
    with attnhub.use(backend):
        want = attnhub.attention(q, k, k)
        assert torch.equal(attnhub.attention(q, k, k, out=q), want)


def test_the_output_of_latent_attention_may_be_written_over_its_queries() -> None:
    mla = BatchMLA(2, "float32", head_dim=(8, 4), page_size=4, scale=0.3, device="cpu")
    mla.plan(i32(0, 2, 3), PagedKV(i32(0, 1, 2), i32(1, 0), i32(3, 4)))
    q, q_pe = normal(3, 2, 8, seed=0), normal(3, 2, 4, seed=1)
    cache = normal(2, 4, 8, seed=2), normal(2, 4, 4, seed=3)
    want = mla.run(q, q_pe, cache)
    assert torch.equal(mla.run(q, q_pe, cache, out=q), want)


@pytest.mark.parametrize("op", ["reference", "torch_sdpa", "mla", "gemm"])
def test_autocast_does_not_lower_what_was_given_in_float32(op: str) -> None:
    q, k = normal(3, 4, 8, seed=0), normal(5, 2, 8, seed=1)

    def call() -> Any:
        if op == "gemm":
            return attnhub.gemm.segment_gemm(q[:, 0], normal(2, 8, 6, seed=2), i32(0, 1, 3))
        if op == "mla":
            mla = BatchMLA(4, "float32", head_dim=(8, 4), page_size=5, scale=0.3, device="cpu")
            mla.plan(i32(0, 3), PagedKV(i32(0, 1), i32(0), i32(5)))
            cache = normal(1, 5, 8, seed=2), normal(1, 5, 4, seed=3)
            return mla.run(q, q[..., :4].contiguous(), cache)
        with attnhub.use(op):
            return attnhub.attention(q, k, k)

    want = call()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(call(), want)


def decode(kv_lens: list[int], kind: str, backend: str) -> tuple[BatchAttention, Any]:
    """A planned step of decoding over a cache, and the cache."""
    pages = [-(-n // 4) for n in kv_lens]
    if kind == "ragged":
        attn = BatchAttention(4, 2, 8, torch.float32, device="cpu", backend=backend)
        starts = [sum(kv_lens[:b]) for b in range(len(kv_lens) + 1)]
        attn.plan(i32(*range(len(kv_lens) + 1)), RaggedKV(i32(*starts)))
        return attn, (normal(starts[-1], 2, 8, seed=1), normal(starts[-1], 2, 8, seed=2))
    attn = BatchAttention(4, 2, 8, torch.float32, Paged(4), device="cpu", backend=backend)
    starts = [sum(pages[:b]) for b in range(len(pages) + 1)]
    last = [n - 4 * (p - 1) if p else 0 for n, p in zip(kv_lens, pages, strict=True)]
    table = PagedKV(i32(*starts), i32(*reversed(range(starts[-1]))), i32(*last))
    attn.plan(i32(*range(len(kv_lens) + 1)), table)
    return attn, normal(starts[-1], 2, 4, 2, 8, seed=1)


@pytest.mark.parametrize("kind", ["ragged", "paged"])
@pytest.mark.parametrize(
    ("kv_lens", "padded"),
    [
        pytest.param([5, 7, 6], True, id="like lengths"),
        pytest.param([5, 0, 9], True, id="an empty one"),
        pytest.param([3] * 15 + [4096], False, id="one long request"),
        pytest.param([0, 0], False, id="no key at all"),
    ],
)
def test_decode_is_padded_only_where_that_is_little(
    kind: str, kv_lens: list[int], padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """63 requests of 16 keys and one of 16384 took a gigabyte and most of a second."""
    gathered: list[int] = []
    original = _Decode._gather

    def spy(self: _Decode, x: torch.Tensor) -> torch.Tensor:
        found = original(self, x)
        gathered.append(found.shape[0] * found.shape[1])
        return found

    monkeypatch.setattr(_Decode, "_gather", spy)
    q = normal(len(kv_lens), 4, 8, seed=0)
    attn, kv = decode(kv_lens, kind, "torch_sdpa")
    out, lse = attn.run(q, kv, return_lse=True)
    assert bool(gathered) == padded
    assert all(rows <= 2 * sum(kv_lens) for rows in gathered)
    want, want_lse = decode(kv_lens, kind, "reference")[0].run(q, kv, return_lse=True)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)
    assert torch.equal(attn.run(q, kv), out)  # what was moved on the first run serves the second


HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
ROUTES = pytest.mark.parametrize("qo", [(0, 1, 2), (0, 3, 5), ()], ids=["decode", "each", "dense"])


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo: tuple[int, ...],
    *,
    backend: str,
    out_dtype: torch.dtype,
    scales: Scales,
) -> torch.Tensor:
    q = q[: qo[-1]] if qo else q
    if not qo:
        out = torch.empty(q.shape, dtype=out_dtype)
        with attnhub.use(backend):
            return attnhub.attention(q, k, v, scales=scales, out=out)
    attn = BatchAttention(
        4, 2, 8, DTypes(q.dtype, k.dtype, out_dtype), device="cpu", backend=backend
    )
    attn.plan(i32(*qo), RaggedKV(i32(0, 4, 9)))
    return attn.run(q, (k, v), scales=scales)


@HALVES
@ROUTES
@pytest.mark.parametrize(
    "scales",
    [
        pytest.param(Scales(), id="none"),
        pytest.param(Scales(q=0.3, k=2.0, v=1.7), id="numbers"),
        pytest.param(
            Scales(q=torch.tensor([0.3, 1, 2, 3]), k=torch.tensor([0.5, 3.0])), id="q and k tensors"
        ),
        pytest.param(Scales(v=torch.tensor([0.3, 7.0])), id="v tensor"),
    ],
)
def test_a_wider_output_is_not_rounded_on_the_way(
    dtype: torch.dtype, qo: tuple[int, ...], scales: Scales
) -> None:
    """bfloat16 inputs with a float32 output: as exact as float32, not as bfloat16."""
    q, k, v = (normal(n, h, 8, seed=h).to(dtype) for n, h in ((5, 4), (9, 2), (9, 2)))
    got, want = (
        attend(q, k, v, qo, backend=name, out_dtype=torch.float32, scales=scales)
        for name in ("torch_sdpa", "reference")
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@ROUTES
@pytest.mark.parametrize("kind", ["numbers", "tensors"])
def test_scales_do_not_overflow_on_the_way(qo: tuple[int, ...], kind: str) -> None:
    """q * q_scale = 2e5 is past float16, and so is every step of v on the way to out * 1e-3."""
    number = {"q": 200.0, "k": 1e-4, "v": 1e-3}
    tensors = {name: torch.tensor([value]) for name, value in number.items()}
    scales = Scales(**(number if kind == "numbers" else tensors))
    q, k = 1000 * normal(5, 4, 8, seed=0).half(), normal(9, 2, 8, seed=1).half()
    v = 6e4 * torch.rand(9, 2, 8, generator=torch.Generator().manual_seed(2)).half()
    got, want = (
        attend(q, k, v, qo, backend=name, out_dtype=torch.float16, scales=scales)
        for name in ("torch_sdpa", "reference")
    )
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("qo", [(0, 1, 2), (0, 2, 5)], ids=["decode", "prefill"])
@pytest.mark.parametrize("kv", ["ragged", "paged"])
@BACKENDS
def test_nothing_depends_on_the_default_device(backend: str, kv: str, qo: tuple[int, ...]) -> None:
    attn = BatchAttention(
        4, 2, 8, torch.float32, Paged(4) if kv == "paged" else attnhub.Ragged(),
        variant=Variant(causal=True, window=(3, 0)), device="cpu", backend=backend,
    )  # fmt: skip
    ragged = RaggedKV(i32(0, 4, 9))
    paged = PagedKV(i32(0, 1, 3), i32(2, 0, 1), i32(4, 1))
    cache = normal(3, 2, 4, 2, 8, seed=1)
    q, qo_indptr, packed = normal(qo[-1], 4, 8, seed=0), i32(*qo), torch.zeros(9, 2, 8)
    masks = [torch.ones(n, m, dtype=torch.bool) for n, m in zip(
        qo_indptr.diff().tolist(), (4, 5), strict=True)]  # fmt: skip
    results = []
    for default in ("cpu", "meta"):
        torch.set_default_device(default)
        try:
            metadata: Any = paged if kv == "paged" else ragged
            attn.plan(qo_indptr, metadata, mask=masks if qo[-1] == 5 else None)
            tensors: Any = cache if kv == "paged" else (packed, packed)
            results.append(attn.run(q, tensors, return_lse=True))
        finally:
            torch.set_default_device("cpu")
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
