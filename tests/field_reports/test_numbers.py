"""Numbers that consumers were bitten by: the base of the LSE, windows, memory nobody wrote."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    BatchMLA,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Rope,
    Variant,
    activation,
    cascade,
    gemm,
    norm,
    page,
    quantization,
    rope,
    sampling,
)
from attnhub.testing.compare import assert_close
from tests.field_reports.public_api import public_names

BACKENDS = ("reference", "torch_sdpa")
NAN = float("nan")


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pair", list(itertools.product(BACKENDS, repeat=2)), ids="+".join)
def test_halves_of_64_keys_merge_to_the_whole_whoever_computed_them(pair: tuple[str, str]) -> None:
    """One base for every backend and every merge. Base 2 taken for base e is off by a tenth."""
    q, k, v = normal(5, 4, 16, seed=0), normal(64, 2, 16, seed=1), normal(64, 2, 16, seed=2)
    whole, whole_lse = attnhub.attention(q, k, v, return_lse=True)
    halves = []
    for name, keys in zip(pair, (slice(0, 32), slice(32, 64)), strict=True):
        with attnhub.use(name):
            halves.append(attnhub.attention(q, k[keys], v[keys], return_lse=True))
    (o_a, lse_a), (o_b, lse_b) = halves
    merged, lse = cascade.merge_state(o_a, lse_a, o_b, lse_b)
    assert_close(merged, whole, dtype=torch.float32)
    assert_close(lse, whole_lse, dtype=torch.float32, kind="lse")
    wrong, _ = cascade.merge_state(o_a, lse_a / math.log(2), o_b, lse_b)
    assert float((wrong - whole).norm() / whole.norm()) > 0.1


def test_latent_attention_states_its_lse_in_the_same_base() -> None:
    caches = normal(4, 16, 8, seed=0), normal(4, 16, 4, seed=1)
    q_nope, q_pe = normal(3, 16, 8, seed=2), normal(3, 16, 4, seed=3)
    mla = BatchMLA(
        16, torch.float32, head_dim=(8, 4), page_size=16, scale=0.3, causal=False, device="cpu"
    )  # fmt: skip

    def over(*pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        mla.plan(i32(0, 3), PagedKV(i32(0, len(pages)), i32(*pages), i32(16)))
        result: tuple[torch.Tensor, torch.Tensor] = mla.run(q_nope, q_pe, caches, return_lse=True)
        return result

    whole, whole_lse = over(2, 0, 3, 1)
    merged, lse = cascade.merge_state(*over(2, 0), *over(3, 1))
    assert_close(merged, whole, dtype=torch.float32)
    assert_close(lse, whole_lse, dtype=torch.float32, kind="lse")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left", [0, 1, 63, 64, 65, 130], ids=lambda w: f"window {w}")
def test_windows_at_the_edges_of_tiles(backend: str, causal: bool, left: int) -> None:
    """0 and 1, one short of a tile, a tile, one more, and every key."""
    right = 0 if causal else left
    variant = Variant(causal=causal, window=(left, right))
    k, v = normal(130, 1, 16, seed=1), normal(130, 1, 16, seed=2)
    for qo_len in (1, 63, 64, 65):
        q = normal(qo_len, 2, 16, seed=qo_len)
        with attnhub.use(backend):
            out = attnhub.attention(q, k, v, variant=variant)
        assert_close(out, _banded(q, k, v, left, right), dtype=torch.float32)


def _banded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, left: int, right: int
) -> torch.Tensor:
    """In float64, with the band as a mask; one KV head."""
    scores = torch.einsum("qhd,kd->hqk", q.double(), k[:, 0].double()) / q.shape[-1] ** 0.5
    distance = torch.arange(len(k)) - (torch.arange(len(q))[:, None] + len(k) - len(q))
    scores = scores.masked_fill((distance < -left) | (distance > right), -math.inf)
    return torch.einsum("hqk,kd->qhd", scores.softmax(-1), v[:, 0].double())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_without_causal_over_pages(backend: str) -> None:
    """The sizes of the report: the first 128 of 300 rows were wrong."""
    attn = BatchAttention(
        8, 2, 128, torch.float32, Paged(16), variant=Variant(window=(333, 0)), device="cpu",
        backend=backend,
    )  # fmt: skip
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    cache, q = normal(256, 2, 16, 2, 128, seed=1), normal(300, 8, 128, seed=2)
    attn.plan(i32(0, 300), PagedKV(i32(0, 256), order.int(), i32(16)))
    out = attn.run(q, cache)
    for head in (0, 7):
        k, v = (cache[order, i, :, head // 4].reshape(-1, 1, 128) for i in (0, 1))
        wanted = _banded(q[:, head : head + 1], k, v, 333, 0)
        assert_close(out[:, head : head + 1], wanted, dtype=torch.float32)


def test_a_declared_maximum_changes_no_bit() -> None:
    """Eager and graph runs declare different bounds; results must not depend on them."""
    attn = BatchAttention(4, 2, 16, torch.float32, Ragged(), device="cpu", deterministic=True)
    q, k, v = normal(7, 4, 16, seed=0), normal(40, 2, 16, seed=1), normal(40, 2, 16, seed=2)
    results = []
    for bounds in (
        {},
        {"max_qo_len": 5, "max_kv_len": 33},
        {"max_qo_len": 512, "max_kv_len": 1 << 20},
    ):
        attn.plan(i32(0, 2, 7), RaggedKV(i32(0, 7, 40)), **bounds)
        results.append(attn.run(q, (k, v), return_lse=True))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


def test_long_and_short_requests_in_one_batch_repeat_to_the_bit() -> None:
    """Decode over a long history, a prompt and a fresh request together, again and again."""
    attn = BatchAttention(
        2, 1, 16, torch.float32, Ragged(), variant=Variant(causal=True), device="cpu",
        deterministic=True,
    )  # fmt: skip
    qo, kv = i32(0, 1, 129, 130), i32(0, 4096, 4224, 4225)
    q, k, v = normal(130, 2, 16, seed=0), normal(4225, 1, 16, seed=1), normal(4225, 1, 16, seed=2)
    attn.plan(qo, RaggedKV(kv))
    first = attn.run(q, (k, v))
    for a, b, c, d in ((0, 1, 0, 4096), (1, 129, 4096, 4224), (129, 130, 4224, 4225)):
        one = attnhub.attention(q[a:b], k[c:d], v[c:d], causal=True)
        assert_close(first[a:b], one, dtype=torch.float32)
    for _ in range(20):
        attn.plan(qo, RaggedKV(kv))
        assert torch.equal(attn.run(q, (k, v), out=torch.full_like(first, NAN)), first)


# --- memory that nobody wrote ---------------------------------------------------------------------

_X, _W = normal(3, 8, seed=0), normal(8, seed=1)
_Q, _K, _P = normal(3, 4, 8, seed=2), normal(3, 2, 8, seed=3), i32(0, 5, 2)
_LSE = normal(3, 4, seed=4)
_PROBS = normal(3, 8, seed=5).softmax(-1)
_TABLE = rope.cos_sin_cache(8, 8, Rope())
_STORED, _SCALE = quantization.quantize_fp8(_X, torch.float8_e4m3fn)

Out = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
#: Every public function with an ``out``, as a function of it (None: make one).
WITH_OUT: dict[str, Callable[[Any], Out]] = {
    "attention": lambda out: attnhub.attention(_Q, _K, _K, out=out),
    "rmsnorm": lambda out: norm.rmsnorm(_X, _W, out=out),
    "gemma_rmsnorm": lambda out: norm.gemma_rmsnorm(_X, _W, out=out),
    "layernorm": lambda out: norm.layernorm(_X, _W, out=out),
    "apply_rope": lambda out: rope.apply_rope(_Q, _K, _P, Rope(), out=out),
    "apply_rope_cos_sin": lambda out: rope.apply_rope_cos_sin(_Q, _K, _P, _TABLE, out=out),
    "rope_append_paged_kv": lambda out: page.rope_append_paged_kv(
        (_Q, _K, _K), _TABLE, torch.zeros(1, 2, 4, 2, 8), PagedKV(i32(0, 1), i32(0), i32(3)),
        i32(0, 0, -1), i32(2, 0, -1), out=out,
    ),
    "silu_and_mul": lambda out: activation.silu_and_mul(_X, out=out),
    "gelu_and_mul": lambda out: activation.gelu_and_mul(_X, out=out),
    "gelu_tanh_and_mul": lambda out: activation.gelu_tanh_and_mul(_X, out=out),
    "merge_state": lambda out: cascade.merge_state(_Q, _LSE, -_Q, 2 * _LSE, out=out),
    "merge_states": lambda out: cascade.merge_states(_Q[:, None], _LSE[:, None], out=out),
    "segment_gemm": lambda out: gemm.segment_gemm(_X, _X.T[None].contiguous(), i32(0, 2), out=out),
    "quantize_fp8": lambda out: quantization.quantize_fp8(_X, torch.float8_e4m3fn, out=out)[0],
    "dequantize_fp8": lambda out: quantization.dequantize_fp8(_STORED, _SCALE, out=out),
    "packbits": lambda out: quantization.packbits((_X > 0).flatten(), out=out),
    "unpackbits": lambda out: quantization.unpackbits(i32(5).view(torch.uint8), 20, out=out),
    "softmax": lambda out: sampling.softmax(_X, out=out),
    "top_k_renorm": lambda out: sampling.top_k_renorm(_PROBS, 3, out=out),
    "top_p_renorm": lambda out: sampling.top_p_renorm(_PROBS, 0.5, out=out),
    "top_k_mask_logits": lambda out: sampling.top_k_mask_logits(_X, 3, out=out),
}  # fmt: skip


def _poisoned(like: torch.Tensor) -> torch.Tensor:
    if like.dtype.is_floating_point:
        return torch.full(like.shape, NAN).to(like.dtype)
    return torch.full_like(like, True if like.dtype == torch.bool else 127)


@pytest.mark.parametrize("name", WITH_OUT)
def test_what_an_output_held_before_does_not_matter(name: str) -> None:
    """NaN times zero is NaN: an output is written, never scaled or accumulated into."""
    call = WITH_OUT[name]
    fresh = call(None)
    many = isinstance(fresh, tuple)
    given = tuple(_poisoned(x) for x in (fresh if many else (fresh,)))
    call(given if many else given[0])
    for got, wanted in zip(given, fresh if many else (fresh,), strict=True):
        assert not wanted.isnan().any()
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


def test_every_output_argument_is_in_the_table() -> None:
    have_out = {
        name.rpartition(".")[2]
        for name, value in public_names()
        if inspect.isfunction(value) and "out" in inspect.signature(value).parameters
    }
    assert have_out == WITH_OUT.keys()
