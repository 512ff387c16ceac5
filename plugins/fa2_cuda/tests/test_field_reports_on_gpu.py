"""Faults that users of such libraries reported, at the sizes that exposed them, on a GPU.

Results are compared with float64; docs/field_reports.md says which report each test answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.attn import Ragged, RaggedKV
from attnhub.plugin import Rope, Scales, Variant
from attnhub.quantization import segment_packbits
from attnhub.rope import apply_rope
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import (
    indptr,
    masks,
    seeded,
)
from plugins.fa2_cuda.tests.reported import Lengths, close, equal, i32, unseen
from plugins.fa2_cuda.tests.reported_on_gpu import CAUSAL_BAND, DEVICE, FP8, Batch, in_band, normal

pytestmark = pytest.mark.gpu(sm=80)


# --- wrong numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", ["nothing", "by causality", "by a mask"])
def test_very_negative_scores_do_not_lose_to_masked_keys(hidden: str, dtype: torch.dtype) -> None:
    """q.k = -524288: a finite stand-in for minus infinity would let masked keys win."""
    for n in (1,) if hidden == "nothing" else (5, 100):
        q, k = torch.full((n, 8, 64), -8192.0), torch.ones(n, 1, 64)
        v = torch.arange(1.0, n + 1).view(n, 1, 1).repeat(1, 1, 64)
        attn = attnhub.BatchAttention(
            8, 1, 64, dtype, Ragged(), device=DEVICE, backend="fa2_cuda",
            variant=Variant(causal=hidden == "by causality", scale=1 / 8),
        )  # fmt: skip
        mask = [torch.eye(n, dtype=torch.bool)] if hidden == "by a mask" else None
        attn.plan(i32(0, n), RaggedKV(i32(0, n)), mask=mask)
        q, k, v = (x.to(DEVICE, dtype) for x in (q, k, v))
        out = torch.full_like(q, math.nan)
        out, lse = attn.run(q, (k, v), out=out, return_lse=True)
        keys = torch.arange(1.0, n + 1, device=DEVICE)
        mean, counted = (keys + 1) / 2, keys.log()  # of the keys up to each
        if hidden != "by causality":
            mean, counted = keys, torch.zeros_like(keys)
        assert torch.equal(out.float(), mean.view(n, 1, 1).expand(n, 8, 64))
        wanted = (counted - 65536)[:, None].expand(n, 8)
        torch.testing.assert_close(lse, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [(5, 3), (300, 170), (130, 1)], ids=str)
@pytest.mark.parametrize("page", [0, 16])
def test_rows_that_see_no_key(page: int, size: tuple[int, int]) -> None:
    """Five queries and three keys, causal; the same over more than a tile."""
    batch = Batch([size], dim=64, page=page)
    got = batch.planned()
    unseen(got, slice(0, size[0] - size[1]))
    close(got, batch.expect())


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("queries", [1, 40])
def test_requests_without_keys(page: int, queries: int) -> None:
    """The page table is [0, 0, 1] and the lengths of the last pages [0, 1]."""
    batch = Batch([(queries, 0), (queries, 1)], page=page)
    got = batch.planned(Variant())
    unseen(got, slice(0, queries))
    close(got, batch.expect((-1, -1)))


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("queries", [1, 13, 200])
def test_nan_in_the_free_slots_of_pages(kv_dtype: torch.dtype, queries: int) -> None:
    """Of four slots: 13 keys, none, and every number of keys in the last page."""
    batch = Batch([(queries, m) for m in (13, 0, 1, 2, 3, 4, 130, 1023)], page=4, kv_dtype=kv_dtype)
    assert batch.kv[0].float().isnan().any()
    close(batch.planned(), batch.expect())


@pytest.mark.parametrize("group", range(1, 17))
def test_gqa_groups(group: int) -> None:
    """17 queries and 54 keys with four KV heads, causal; and decode whose pieces are merged."""
    heads = (4 * group, 4)
    for sizes in ([(17, 54)], [(1, 5000)], [(1, 5000), (300, 1000), (17, 54)]):
        for page in (0, 16):
            batch = Batch(sizes, heads=heads, page=page)
            close(batch.planned(), batch.expect())
            attn = batch.attention()
            attn.plan(batch.qo_indptr, batch.metadata)
            close(batch.run(attn), batch.expect())


@pytest.mark.parametrize("right", [0, -1])
def test_a_window_without_causal_over_pages(right: int) -> None:
    """300 queries, 4096 keys, a window of 333: the first 128 rows were wrong."""
    batch = Batch([(300, 4096)])
    close(batch.planned(Variant(window=(333, right))), batch.expect((333, right)))


@pytest.mark.parametrize("left", [0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 700])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_windows_at_the_edges_of_tiles(causal: bool, kv_dtype: torch.dtype, left: int) -> None:
    """Of 32 and of 64 keys; with and without causality, for one query and round a tile of them."""
    right = 0 if causal else left
    variant = Variant(causal=causal, window=(left, right))
    queries = (1, 63, 64, 65, 129)
    for sizes in ([(n, 700) for n in queries], [(1, 700), (1, 130)], [(65, 130)]):
        batch = Batch(sizes, kv_dtype=kv_dtype)
        close(batch.planned(variant), batch.expect((left, right)))


@pytest.mark.parametrize(
    ("sizes", "offsets"),
    [
        ([(1, 54)], None),
        ([(1, 54), (1, 3000), (1, 1)], ([7, 5000, 0], [3, 90, 0])),
        ([(200, 540), (1, 54)], None),
        ([(200, 540), (1, 54)], ([1000, 7], [900, 3])),
    ],
    ids=["decode", "decode with offsets", "mixed", "mixed with offsets"],
)
def test_fused_rotation(sizes: Lengths, offsets: tuple[list[int], list[int]] | None) -> None:
    """As rotating first and attending then, wherever the positions of queries and keys begin."""
    rope = Rope()
    batch = Batch(sizes)
    q_starts, k_starts = offsets or ([m - n for n, m in sizes], [0] * len(sizes))
    given = {"q_offset": i32(*q_starts), "k_offset": i32(*k_starts)} if offsets else {}
    got = batch.planned(Variant(causal=True, rope=rope), **given)

    def turned(rows: Tensor, counts: Sequence[int], starts: Sequence[int]) -> Tensor:
        at = zip(starts, counts, strict=True)
        positions = i32(*(first + i for first, n in at for i in range(n))).to(DEVICE)
        return apply_rope(rows.float(), rows[:, :1].float(), positions, rope)[0]

    batch.q = turned(batch.q, batch.qo_lens, q_starts)
    batch.k = turned(batch.k, batch.kv_lens, k_starts)
    close(got, batch.expect())


@pytest.mark.parametrize("sizes", [[(3, 5), (7, 9)], [(3, 5), (70, 299), (1, 1001)]], ids=str)
def test_packed_and_bool_masks_agree(sizes: Lengths) -> None:
    """Requests of 3 x 5 and 7 x 9 bits, which end inside a byte; and larger ones."""
    batch = Batch(sizes)
    each = masks(batch.qo_lens, batch.kv_lens, 0.5, generator=seeded(3))
    flat = torch.cat([m.flatten() for m in each])
    packed, _ = segment_packbits(flat, indptr([m.numel() for m in each]))
    first = batch.planned(Variant(), mask=each)
    close(first, batch.expect(seen=each))
    equal(batch.planned(Variant(), mask=flat.to(DEVICE)), first)
    equal(batch.planned(Variant(), mask=packed.to(DEVICE)), first)
    equal(batch.planned(Variant(), mask=packed), first)


def test_planning_anew_leaves_nothing_of_the_mask() -> None:
    """Masked, then causal, then masked otherwise, by one object."""
    batch = Batch([(30, 300), (2, 900)])
    attn = batch.attention()
    attn.plan(batch.qo_indptr, batch.metadata, mask=torch.zeros(10800, dtype=torch.bool))
    unseen(batch.run(attn), slice(None))
    attn.plan(batch.qo_indptr, batch.metadata)
    close(batch.run(attn), batch.expect())
    each = masks(batch.qo_lens, batch.kv_lens, 0.5, generator=seeded(4))
    attn.plan(batch.qo_indptr, batch.metadata, mask=each)
    causal = [in_band(*m.shape, CAUSAL_BAND) & m.to(DEVICE) for m in each]
    close(batch.run(attn), batch.expect(seen=causal))


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("sizes", [[(1, 4000)], [(300, 700)], [(300, 700), (1, 900)]], ids=str)
def test_scales_on_every_path(page: int, sizes: Lengths) -> None:
    """A scale of V of 2 doubles the output, one of K sharpens it; with an LSE or without."""
    batch = Batch(sizes, page=page)
    attn = batch.attention(deterministic=True)
    attn.plan(batch.qo_indptr, batch.metadata)
    plain, lse = batch.run(attn)
    sharp = batch.expect(scale=2 / math.sqrt(batch.dim))
    each = torch.tensor([2.0, 2.0], device=DEVICE)
    for two in (2.0, each[:1], each):
        equal(batch.run(attn, scales=Scales(v=two)), (2 * plain, lse))
        assert torch.equal(attn.run(batch.q, batch.kv, scales=Scales(v=two)), 2 * plain)
        close(batch.run(attn, scales=Scales(k=two)), sharp)
        alone = attn.run(batch.q, batch.kv, scales=Scales(k=two))
        assert_close(alone, sharp[0], dtype=torch.bfloat16)


@pytest.mark.parametrize("queries", [1, 300])
def test_a_layer_of_a_pool_of_pages_and_slices_of_packed_projections(queries: int) -> None:
    pool = normal(80, 5, 2, 16, 2, 128, seed=0)  # pages, layers, K and V, slots, heads, channels
    batch = Batch([(queries, 1000)])
    qkv = normal(queries, 12, 128, seed=1)
    batch.kv, batch.q = pool[:, 3], qkv[:, :8]
    pages = batch.metadata.indices.long().to(DEVICE)
    batch.k, batch.v = (pool[pages, 3, i].flatten(0, 1)[:1000] for i in (0, 1))
    strided = batch.planned()
    close(strided, batch.expect())
    batch.kv, batch.q = batch.kv.contiguous(), batch.q.contiguous()
    equal(batch.planned(), strided)

    ragged = Batch([(queries, queries)], page=0)
    ragged.q, ragged.k, ragged.v = qkv.split([8, 2, 2], dim=1)
    ragged.kv = (ragged.k, ragged.v)
    strided = ragged.planned()
    close(strided, ragged.expect())
    ragged.q, ragged.kv = ragged.q.contiguous(), tuple(x.contiguous() for x in ragged.kv)
    equal(ragged.planned(), strided)


def test_decode_over_an_fp8_cache_of_large_pages() -> None:
    """128 requests of 1024 keys, 128 query heads and 16 KV heads, pages of 128."""
    batch = Batch([(1, 1024)] * 128, heads=(128, 16), page=128, kv_dtype=FP8)
    attn = batch.attention()
    attn.plan(batch.qo_indptr, batch.metadata)
    got = batch.run(attn, scales=Scales(k=0.5, v=2.0))
    out, lse = batch.expect(scale=0.5 / math.sqrt(batch.dim))
    close(got, (2 * out, lse))


# --- mixed batches --------------------------------------------------------------------------------


def test_a_mixed_batch_repeats_to_the_bit() -> None:
    """A long history, a prompt and a fresh request, a hundred times."""
    batch = Batch([(1, 8192), (512, 512), (1, 1)])
    expected = batch.expect()
    attn = batch.attention(deterministic=True)
    attn.plan(batch.qo_indptr, batch.metadata)
    first = batch.run(attn)
    close(first, expected)
    for _ in range(100):
        attn.plan(batch.qo_indptr, batch.metadata)
        equal(batch.run(attn), first)
    attn = batch.attention()
    attn.plan(batch.qo_indptr, batch.metadata)
    for _ in range(100):
        close(batch.run(attn), expected)


@pytest.mark.parametrize("page", [0, 16])
def test_a_prompt_beside_many_single_queries(page: int) -> None:
    """One prompt of 2048 and 128 queries over 2048 keys; then a prompt with a prefix too."""
    for prompts in ([(2048, 2048)], [(2048, 2048), (512, 4096)]):
        batch = Batch([*prompts, *[(1, 2048)] * 128], page=page)
        attn = batch.attention()
        attn.plan(batch.qo_indptr, batch.metadata)
        close(batch.run(attn), batch.expect())
