"""The rules of attention that every backend keeps, one test each (design: docs/conventions.md)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    DTypes,
    GraphLimits,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Rope,
    ScalarParam,
    Scales,
    Variant,
)
from attnhub.attn.reference import Request, attend
from attnhub.quantization.reference import segment_packbits
from attnhub.rope import reference as rope_reference
from attnhub.testing.compare import assert_close

NAN = float("nan")


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ragged(variant: Variant, **changes: Any) -> BatchAttention:
    return BatchAttention(
        4, 2, 8, torch.float32, Ragged(), variant=variant, device="cpu", **changes
    )


def rows(*lens: int, heads: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sum(lens), heads, 8, generator=torch.Generator().manual_seed(seed))


def test_causal_is_bottom_right_and_rows_without_keys_are_zero_with_lse_minus_inf() -> None:
    """qo_len 5 > kv_len 3: the first two queries see nothing."""
    attn = ragged(Variant(causal=True))
    attn.plan(i32(0, 5), RaggedKV(i32(0, 3)))
    q, k, v = rows(5, heads=4), rows(3, heads=2, seed=1), rows(3, heads=2, seed=2)
    out, lse = attn.run(q, (k, v), return_lse=True)
    assert (out[:2] == 0).all()
    assert (lse[:2] == -math.inf).all()
    assert torch.isfinite(lse[2:]).all()
    torch.testing.assert_close(out[2], v[0].repeat_interleave(2, 0))  # sees one key


def test_an_empty_request_in_the_middle() -> None:
    attn = ragged(Variant(causal=True))
    attn.plan(i32(0, 2, 4, 5), RaggedKV(i32(0, 3, 3, 7)))
    q, k, v = rows(5, heads=4), rows(7, heads=2, seed=1), rows(7, heads=2, seed=2)
    out, lse = attn.run(q, (k, v), return_lse=True)
    assert (out[2:4] == 0).all()
    assert (lse[2:4] == -math.inf).all()
    last, _ = attend(q[4:], k[3:], v[3:], Variant(causal=True), Request())
    torch.testing.assert_close(out[4:], last)


def test_an_empty_batch() -> None:
    attn = ragged(Variant(causal=True))
    attn.plan(i32(0), RaggedKV(i32(0)))
    kv = torch.empty(0, 2, 8)
    assert attn.run(torch.empty(0, 4, 8), (kv, kv)).shape == (0, 4, 8)


def test_very_negative_logits_do_not_lose_to_a_masked_sentinel() -> None:
    """q.k = -524288: a finite stand-in for -inf would let masked keys win."""
    q = torch.full((1, 1, 8), -65536.0)
    k = torch.ones(2, 1, 8)
    v = torch.tensor([1.0, 5.0]).view(2, 1, 1).expand(2, 1, 8)
    mask = torch.tensor([[True, False]])
    for backend in ("reference", "torch_sdpa"):
        with attnhub.use(backend):
            out, lse = attnhub.attention(
                q, k, v.contiguous(), mask=mask, variant=Variant(scale=1 / 8), return_lse=True
            )
        assert (out == 1).all()
        assert lse.item() == -65536.0


def test_lse_is_the_natural_log_in_every_backend() -> None:
    q, k, v = rows(3, heads=4), rows(6, heads=2, seed=1), rows(6, heads=2, seed=2)
    expected = torch.einsum("qhd,khd->qhk", q, k.repeat_interleave(2, 1)) / 8**0.5
    for backend in ("reference", "torch_sdpa"):
        with attnhub.use(backend):
            _, lse = attnhub.attention(q, k, v, return_lse=True)
        torch.testing.assert_close(lse, expected.logsumexp(-1))


@pytest.mark.parametrize("group", range(1, 17))
def test_gqa_groups(group: int) -> None:
    q = torch.randn(17, 2 * group, 8)
    k, v = torch.randn(54, 2, 8), torch.randn(54, 2, 8)
    out = attnhub.attention(q, k, v, causal=True)
    mask = torch.ones(17, 54, dtype=torch.bool).tril(54 - 17)
    many = [x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), *many, attn_mask=mask
    )
    torch.testing.assert_close(out, want.transpose(0, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("poison", [NAN, math.inf])
@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
def test_memory_that_no_request_owns_does_not_leak(backend: str, poison: float) -> None:
    attn = BatchAttention(
        4,
        2,
        8,
        torch.float32,
        Paged(4),
        variant=Variant(causal=True),
        device="cpu",
        backend=backend,
    )
    cache = torch.full((5, 2, 4, 2, 8), poison)
    k = torch.randn(13, 2, 8)
    for slot in range(13):
        cache[(3, 1, 4, 0)[slot // 4], :, slot % 4] = k[slot]
    table = PagedKV(i32(0, 4), i32(3, 1, 4, 0), i32(1))
    for qo_len in (1, 3):
        q = torch.randn(qo_len, 4, 8)
        attn.plan(i32(0, qo_len), table)
        out = torch.full((qo_len, 4, 8), NAN)
        attn.run(q, cache, out=out)
        torch.testing.assert_close(out, attnhub.attention(q, k, k, causal=True))


def test_planning_anew_leaves_nothing_of_the_old_plan() -> None:
    """Custom mask, then none; then another batch size: no state survives."""
    attn = ragged(Variant(causal=True))
    q, k, v = rows(3, heads=4), rows(5, heads=2, seed=1), rows(5, heads=2, seed=2)
    attn.plan(i32(0, 3), RaggedKV(i32(0, 5)), mask=torch.zeros(15, dtype=torch.bool))
    assert (attn.run(q, (k, v)) == 0).all()
    attn.plan(i32(0, 3), RaggedKV(i32(0, 5)))
    torch.testing.assert_close(attn.run(q, (k, v)), attnhub.attention(q, k, v, causal=True))
    attn.plan(i32(0, 1), RaggedKV(i32(0, 5)))
    torch.testing.assert_close(attn.run(q[:1], (k, v)), attnhub.attention(q[:1], k, v, causal=True))


def test_packed_and_bool_masks_agree_over_requests_that_end_inside_a_byte() -> None:
    attn = ragged(Variant())
    q, k, v = rows(10, heads=4), rows(14, heads=2, seed=1), rows(14, heads=2, seed=2)
    generator = torch.Generator().manual_seed(3)
    masks = [torch.rand(n, m, generator=generator) < 0.5 for n, m in ((3, 5), (7, 9))]
    flat = torch.cat([m.reshape(-1) for m in masks])
    packed, _ = segment_packbits(flat, i32(0, 15, 78), bitorder="little")
    results = []
    for mask in (masks, flat, packed):
        attn.plan(i32(0, 3, 10), RaggedKV(i32(0, 5, 14)), mask=mask)
        results.append(attn.run(q, (k, v)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    one = attnhub.attention(q[3:], k[5:], v[5:], mask=masks[1])
    torch.testing.assert_close(results[0][3:], one)


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
def test_scales_are_applied_on_every_path(backend: str, return_lse: bool) -> None:
    q, k, v = rows(3, heads=4), rows(5, heads=2, seed=1), rows(5, heads=2, seed=2)
    per_head = Scales(
        q=torch.tensor([1.0, 2.0, 0.5, 1.5]), k=torch.tensor([0.5, 2.0]), v=torch.tensor([3.0, 2.0])
    )
    plain = [x * s.view(-1, 1) for x, s in ((q, per_head.q), (k, per_head.k), (v, per_head.v))]
    with attnhub.use(backend):
        got = attnhub.attention(q, k, v, scales=per_head, return_lse=return_lse)
        want = attnhub.attention(*plain, return_lse=return_lse)
        doubled = attnhub.attention(q, k, v, scales=Scales(v=2.0))
        assert torch.equal(doubled, 2 * attnhub.attention(q, k, v))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_cache_with_per_head_scales(dtype: str) -> None:
    kind = getattr(torch, dtype)
    attn = BatchAttention(
        4, 2, 8, DTypes("bfloat16", dtype, "bfloat16"), Paged(4), device="cpu",
        variant=Variant(causal=True),
    )  # fmt: skip
    cache = torch.randn(3, 2, 4, 2, 8).to(kind)
    scales = Scales(k=torch.tensor([0.5, 2.0]), v=torch.tensor([3.0, 0.25]))
    q = torch.randn(2, 4, 8).bfloat16()
    attn.plan(i32(0, 2), PagedKV(i32(0, 3), i32(2, 0, 1), i32(3)))
    out = attn.run(q, cache, scales=scales)
    keys, values = (cache[[2, 0, 1], i].float().reshape(-1, 2, 8)[:11] for i in (0, 1))
    want = attnhub.attention(
        q.float(), keys * scales.k.view(-1, 1), values * scales.v.view(-1, 1), causal=True
    )
    assert_close(out, want, dtype=torch.bfloat16)


@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
def test_the_output_dtype_is_chosen(out_dtype: str) -> None:
    attn = BatchAttention(
        4, 2, 8, DTypes("bfloat16", "bfloat16", out_dtype), Ragged(), device="cpu"
    )
    q, k, v = (x.bfloat16() for x in (rows(2, heads=4), rows(3, heads=2), rows(3, heads=2)))
    attn.plan(i32(0, 2), RaggedKV(i32(0, 3)))
    out = attn.run(q, (k, v))
    assert out.dtype == getattr(torch, out_dtype)
    assert_close(out, attnhub.attention(q.float(), k.float(), v.float()), dtype=torch.bfloat16)


def test_fused_rope_takes_offsets_per_request() -> None:
    rope = Rope(theta=1e4)
    attn = ragged(Variant(causal=True, rope=rope))
    q, k, v = rows(2, 3, heads=4), rows(4, 5, heads=2, seed=1), rows(4, 5, heads=2, seed=2)
    attn.plan(i32(0, 2, 5), RaggedKV(i32(0, 4, 9)), q_offset=i32(7, 100), k_offset=i32(3, 90))
    out = attn.run(q, (k, v))
    for rows_q, rows_k, q_first, k_first in ((slice(0, 2), slice(0, 4), 7, 3),
                                             (slice(2, 5), slice(4, 9), 100, 90)):  # fmt: skip
        n, m = rows_q.stop - rows_q.start, rows_k.stop - rows_k.start
        rotated = [
            rope_reference.apply_rope(x, torch.arange(first, first + len(x)), rope)
            for x, first, _ in ((q[rows_q], q_first, n), (k[rows_k], k_first, m))
        ]
        want = attnhub.attention(rotated[0], rotated[1], v[rows_k], causal=True)
        torch.testing.assert_close(out[rows_q], want, rtol=1e-4, atol=1e-5)


def test_any_strides_of_a_paged_cache() -> None:
    """The cache of one layer out of [pages, layers, 2, page, heads, dim]."""
    pool = torch.randn(3, 5, 2, 4, 2, 8)
    attn = BatchAttention(4, 2, 8, torch.float32, Paged(4), device="cpu")
    attn.plan(i32(0, 1), PagedKV(i32(0, 3), i32(2, 0, 1), i32(4)))
    q = torch.randn(1, 4, 8)
    assert torch.equal(attn.run(q, pool[:, 3]), attn.run(q, pool[:, 3].contiguous()))
    hnd = BatchAttention(4, 2, 8, torch.float32, Paged(4, "HND"), device="cpu")
    hnd.plan(i32(0, 1), PagedKV(i32(0, 3), i32(2, 0, 1), i32(4)))
    torch.testing.assert_close(
        hnd.run(q, pool[:, 3].transpose(2, 3)), attn.run(q, pool[:, 3]), rtol=1e-5, atol=1e-6
    )


def test_deterministic_is_independent_of_the_rest_of_the_batch() -> None:
    attn = ragged(Variant(causal=True), deterministic=True)
    q, k, v = rows(40, heads=4), rows(90, heads=2, seed=1), rows(90, heads=2, seed=2)
    attn.plan(i32(0, 30, 40), RaggedKV(i32(0, 50, 90)))
    both = attn.run(q, (k, v))
    attn.plan(i32(0, 10), RaggedKV(i32(0, 40)))
    alone = attn.run(q[30:], (k[50:], v[50:]))
    assert attn.explain().chosen.name == "reference"  # type: ignore[union-attr]
    assert torch.equal(both[30:], alone)


def test_sigmoid_attention_in_five_lines() -> None:
    """FlashSigmoid: Ramapuram et al. 2024, arXiv:2409.04431."""
    bias = ScalarParam("bias")
    variant = Variant(
        softmax=False, score_mod=lambda s, b, h, q_idx, kv_idx: torch.sigmoid(s + bias)
    )
    q, k, v = rows(3, heads=4), rows(5, heads=2, seed=1), rows(5, heads=2, seed=2)
    out = attnhub.attention(q, k, v, variant=variant, params={"bias": -1.5})
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(2, 1)) / 8**0.5
    want = torch.einsum("hqk,khd->qhd", torch.sigmoid(scores - 1.5), v.repeat_interleave(2, 1))
    torch.testing.assert_close(out, want)


def test_graph_mode_keeps_addresses_and_pads_with_zeros() -> None:
    limits = GraphLimits(max_batch=4, max_qo_tokens=6, max_pages=8)
    attn = BatchAttention(
        4, 2, 8, torch.float32, Paged(4), variant=Variant(causal=True), device="cpu", graph=limits
    )
    plain = BatchAttention(
        4, 2, 8, torch.float32, Paged(4), variant=Variant(causal=True), device="cpu"
    )
    cache = torch.randn(8, 2, 4, 2, 8)
    q = torch.randn(6, 4, 8)
    addresses = set()
    for qo, table in (
        (i32(0, 1, 2, 3), PagedKV(i32(0, 2, 3, 5), i32(7, 1, 2, 4, 0), i32(3, 1, 4))),
        (i32(0, 5), PagedKV(i32(0, 3), i32(3, 5, 6), i32(2))),
    ):
        attn.plan(qo, table)
        out, lse = attn.run(q, cache, out=torch.full((6, 4, 8), NAN), return_lse=True)
        live = int(qo[-1])
        plain.plan(qo, table)
        torch.testing.assert_close(out[:live], plain.run(q[:live], cache))
        assert (out[live:] == 0).all()
        assert (lse[live:] == -math.inf).all()
        batch = attn._batch
        assert batch is not None
        assert isinstance(batch.kv, PagedKV)
        addresses.add((batch.qo_indptr.data_ptr(), batch.kv.indices.data_ptr()))
    assert len(addresses) == 1
    with pytest.raises(attnhub.errors.InvalidArgument, match=r"pages is 9, past GraphLimits"):
        attn.plan(i32(0, 1), PagedKV(i32(0, 9), i32(*range(9)), i32(1)))


def test_a_graph_reads_the_same_kinds_of_metadata_in_every_plan() -> None:
    """With a mask and offsets captured, a plan without them would replay the old ones."""
    limits = GraphLimits(max_batch=2, max_qo_tokens=4, max_pages=4, max_mask_bytes=4, offsets=True)
    attn = BatchAttention(
        4, 2, 8, torch.float32, Paged(4), variant=Variant(rope=Rope()), device="cpu", graph=limits
    )
    qo, table = i32(0, 2), PagedKV(i32(0, 1), i32(1), i32(3))
    mask, zero = torch.tensor([0b110011], dtype=torch.uint8), i32(0)
    attn.plan(qo, table, mask=mask, q_offset=zero, k_offset=zero)
    planned = attn._run
    attn.plan(qo, table, mask=mask, q_offset=i32(5), k_offset=zero)
    assert attn._run == planned
    for missing, message in (
        ({"q_offset": zero, "k_offset": zero}, "give one to every plan"),
        ({"mask": mask}, "need both to every plan"),
        ({"mask": mask, "q_offset": zero}, "need both to every plan"),
    ):
        with pytest.raises(attnhub.errors.InvalidArgument, match=message):
            attn.plan(qo, table, **missing)  # type: ignore[arg-type]


def test_compiled_run_follows_new_plans_without_compiling_anew() -> None:
    attn = ragged(Variant(causal=True))
    compiles = []

    def count(graph: Any, inputs: Any) -> Any:
        compiles.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=count)
    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return attn.run(2 * q, (k, v))

    q, k, v = rows(3, heads=4), rows(5, heads=2, seed=1), rows(5, heads=2, seed=2)
    for qo, kv in ((i32(0, 3), i32(0, 5)), (i32(0, 1, 3), i32(0, 2, 5))):
        attn.plan(qo, RaggedKV(kv))
        with torch.no_grad():
            torch.testing.assert_close(layer(q, k, v), attn.run(2 * q, (k, v)))
    assert len(compiles) == 1


def test_nothing_depends_on_the_default_device() -> None:
    torch.set_default_device("meta")
    try:
        attn = ragged(Variant(causal=True, alibi=True))
        attn.plan(torch.tensor([0, 2], dtype=torch.int32, device="cpu"),
                  RaggedKV(torch.tensor([0, 3], dtype=torch.int32, device="cpu")))  # fmt: skip
        q = torch.ones(2, 4, 8, device="cpu")
        k = torch.ones(3, 2, 8, device="cpu")
        slopes = torch.ones(4, device="cpu")
        out = attn.run(q, (k, k), params={"alibi_slopes": slopes})
    finally:
        torch.set_default_device("cpu")
    assert (out == 1).all()
