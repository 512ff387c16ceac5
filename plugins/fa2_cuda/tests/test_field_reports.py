"""Faults that users of such libraries reported, in the kernel emulator (docs/field_reports.md).

Small forms of the inputs that exposed them; test_field_reports_on_gpu.py has the real sizes.
"""

from __future__ import annotations

import math

import pytest
import torch

import attnhub
from attnhub.attn import Ragged, RaggedKV
from attnhub.errors import BackendUnsupported
from attnhub.plugin import Registry, Rope, Scales, Variant
from attnhub.quantization import segment_packbits
from attnhub.rope import apply_rope
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import (
    masks,
    seeded,
)
from attnhub_fa2_cuda import manifest
from plugins.fa2_cuda.tests.reported import (
    Batch,
    Lengths,
    close,
    equal,
    i32,
    normal,
    unseen,
)


@pytest.fixture(autouse=True)
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    """The backends of the manifest, for the emulator."""
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    return emulated_gpu


# --- wrong numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", ["nothing", "by causality", "by a mask"])
def test_very_negative_scores_do_not_lose_to_masked_keys(hidden: str, dtype: torch.dtype) -> None:
    """q.k = -524288: a finite stand-in for minus infinity would let masked keys win."""
    n = 1 if hidden == "nothing" else 3
    q, k = torch.full((n, 2, 128), -4096.0), torch.ones(n, 1, 128)
    v = torch.arange(1.0, n + 1).view(n, 1, 1).expand(n, 1, 128)
    attn = attnhub.BatchAttention(
        2, 1, 128, dtype, Ragged(), device="cpu", backend="fa2_cuda",
        variant=Variant(causal=hidden == "by causality", scale=1 / 8),
    )  # fmt: skip
    mask = [torch.eye(n, dtype=torch.bool)] if hidden == "by a mask" else None
    attn.plan(i32(0, n), RaggedKV(i32(0, n)), mask=mask)
    kv = k.to(dtype), v.contiguous().to(dtype)
    out, lse = attn.run(q.to(dtype), kv, return_lse=True)
    seen = torch.tensor([1.0, 1.5, 2.0][:n] if hidden == "by causality" else [1.0, 2.0, 3.0][:n])
    assert torch.equal(out.float(), seen.view(n, 1, 1).expand(n, 2, 128))
    counted = torch.arange(1.0, n + 1).log() if hidden == "by causality" else torch.zeros(n)
    torch.testing.assert_close(lse, (counted - 65536).repeat(2, 1).T, rtol=1e-6, atol=0)


def test_rows_that_see_no_key() -> None:
    """Five queries, three keys, causal: the first two rows see none."""
    unseen(Batch([(5, 3)], dim=64).check(), slice(0, 2))


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("queries", [1, 40])
def test_requests_without_keys(page: int, queries: int) -> None:
    """The page table is [0, 0, 1] and the lengths of the last pages [0, 1]."""
    got = Batch([(queries, 0), (queries, 1)], page=page).check(Variant())
    unseen(got, slice(0, queries))


@pytest.mark.parametrize(
    ("kv_dtype", "queries"),
    [(torch.bfloat16, 1), (torch.bfloat16, 40), (torch.float8_e4m3fn, 1)],
    ids=str,
)
def test_nan_in_the_free_slots_of_pages(kv_dtype: torch.dtype, queries: int) -> None:
    """Of four slots; 13 keys, and one."""
    batch = Batch([(queries, 13), (queries, 0), (queries, 1)], page=4, kv_dtype=kv_dtype)
    assert batch.kv.float().isnan().any()
    got = batch.check()
    assert not got[0].isnan().any()


@pytest.mark.parametrize("group", range(1, 17))
def test_gqa_groups(gpu: EmulatedGpu, group: int) -> None:
    """17 queries and 54 keys, causal; and a cut decode, whose pieces are merged."""
    kv_heads = 4 if group == 7 else 1
    heads = (kv_heads * group, kv_heads)
    gpu.num_sms = 4
    Batch([(17, 54)], heads=heads, page=0).check()
    Batch([(1, 300)], heads=heads).check()


@pytest.mark.parametrize("right", [0, -1])
def test_a_window_without_causal_over_pages(right: int) -> None:
    """The rows of the first tile were wrong."""
    Batch([(150, 400)], heads=(2, 1)).check(Variant(window=(77, right)))


@pytest.mark.parametrize("left", [0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_at_the_edges_of_tiles(left: int, causal: bool) -> None:
    """Of 64 keys; with and without causality, for one query and round a tile of them."""
    variant = Variant(causal=causal, window=(left, 0 if causal else left))
    Batch([(n, 130) for n in (1, 63, 64, 65)], heads=(2, 1), page=0).check(variant)


@pytest.mark.parametrize(
    ("lengths", "offsets"),
    [
        ([(1, 54)], None),
        ([(2, 4), (1, 54)], ([7, 100], [3, 90])),
        ([(40, 54)], ([1000], [900])),
    ],
    ids=["decode", "offsets", "prefill"],
)
def test_fused_rotation(lengths: Lengths, offsets: tuple[list[int], list[int]] | None) -> None:
    """As rotating first and attending then, wherever the positions of queries and keys begin."""
    rope = Rope()
    batch = Batch(lengths)
    attn = batch.attention(variant=Variant(causal=True, rope=rope))
    starts = offsets or ([m - n for n, m in lengths], [0] * len(lengths))
    given = dict(zip(("q_offset", "k_offset"), map(torch.tensor, starts), strict=True))
    given = {name: x.int() for name, x in given.items()}
    attn.plan(batch.qo_indptr, batch.metadata, **(given if offsets else {}))
    parts = zip(
        batch.q.split(batch.qo_lens),
        batch.k.split(batch.kv_lens),
        batch.v.split(batch.kv_lens),
        *starts,
        strict=True,
    )
    found = []
    for q, k, v, *first in parts:
        turned = (
            apply_rope(x.float(), x[:, :1].float(), i32(*range(start, start + len(x))), rope)[0]
            for x, start in zip((q, k), first, strict=True)
        )
        with attnhub.use("reference"):
            found.append(attnhub.attention(*turned, v.float(), causal=True, return_lse=True))
    outs, lses = zip(*found, strict=True)
    close(batch.run(attn), (torch.cat(outs), torch.cat(lses)))


def test_packed_and_bool_masks_agree() -> None:
    """Requests of 3 x 5 and 7 x 9 bits, which end inside a byte."""
    batch = Batch([(3, 5), (7, 9)], heads=(4, 2))
    each = masks(batch.qo_lens, batch.kv_lens, 0.5, generator=seeded(3))
    flat = torch.cat([m.flatten() for m in each])
    packed, _ = segment_packbits(flat, i32(0, 15, 78))
    first = batch.check(Variant(), mask=each)
    equal(batch.check(Variant(), mask=flat), first)
    equal(batch.check(Variant(), mask=packed), first)


def test_planning_anew_leaves_nothing_of_the_mask() -> None:
    """Masked, then causal, then masked otherwise, by one object."""
    batch = Batch([(3, 30), (2, 9)], heads=(4, 2))
    attn = batch.attention()
    attn.plan(batch.qo_indptr, batch.metadata, mask=torch.zeros(108, dtype=torch.bool))
    unseen(batch.run(attn), slice(None))
    attn.plan(batch.qo_indptr, batch.metadata)
    close(batch.run(attn), batch.expect())
    each = masks(batch.qo_lens, batch.kv_lens, 0.5, generator=seeded(4))
    attn.plan(batch.qo_indptr, batch.metadata, mask=each)
    close(batch.run(attn), batch.expect(mask=each))


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("lengths", [[(1, 70)], [(40, 70)], [(40, 70), (1, 90)]], ids=str)
def test_scales_on_every_path(page: int, lengths: Lengths) -> None:
    """A scale of V of 2 doubles the output, one of K sharpens it; with an LSE or without."""
    batch = Batch(lengths, page=page)
    attn = batch.attention()
    attn.plan(batch.qo_indptr, batch.metadata)
    plain, lse = batch.run(attn)
    sharp = batch.expect(Variant(causal=True, scale=2 / math.sqrt(batch.dim)))
    for two in (2.0, torch.tensor([2.0]), torch.tensor([2.0, 2.0])):
        equal(batch.run(attn, scales=Scales(v=two)), (2 * plain, lse))
        assert torch.equal(attn.run(batch.q, batch.kv, scales=Scales(v=two)), 2 * plain)
        close(batch.run(attn, scales=Scales(k=two)), sharp)
        close((attn.run(batch.q, batch.kv, scales=Scales(k=two)), lse), (sharp[0], lse))


@pytest.mark.parametrize("queries", [1, 40])
def test_a_layer_of_a_pool_of_pages_and_slices_of_packed_projections(queries: int) -> None:
    pool = normal(8, 3, 2, 16, 2, 128, seed=0)  # pages, layers, K and V, slots, heads, channels
    batch = Batch([(queries, 70)])
    qkv = normal(queries, 12, 128, seed=1)
    batch.kv, batch.q = pool[:, 1], qkv[:, :8]
    assert not batch.kv.is_contiguous()
    strided = batch.check()
    batch.kv, batch.q = batch.kv.contiguous(), batch.q.contiguous()
    equal(batch.check(), strided)

    ragged = Batch([(queries, queries)], page=0)
    ragged.q, ragged.kv = qkv[:, :8], (qkv[:, 8:10], qkv[:, 10:])
    strided = ragged.check()
    ragged.q, ragged.kv = ragged.q.contiguous(), tuple(x.contiguous() for x in ragged.kv)
    equal(ragged.check(), strided)


@pytest.mark.parametrize("dim", [40, 72, 272])
def test_other_head_dims_are_refused_with_those_served(dim: int) -> None:
    batch = Batch([(1, 3)], dim=dim)
    with pytest.raises(BackendUnsupported, match=f"head_dim_qk is {dim}.*multiple.* of 16.*256"):
        batch.attention().plan(batch.qo_indptr, batch.metadata)


# --- mixed batches --------------------------------------------------------------------------------


def test_a_mixed_batch_repeats_to_the_bit(gpu: EmulatedGpu) -> None:
    """A long history, a prompt and a fresh request, in other orders of threads."""
    gpu.num_sms = 5
    batch = Batch([(1, 1500), (70, 70), (1, 1)], heads=(4, 2))
    expected = batch.expect()
    found = []
    for deterministic in (True, False):
        attn = batch.attention(deterministic=deterministic)
        for seed in range(1, 4):
            gpu.seed = seed
            attn.plan(batch.qo_indptr, batch.metadata)
            got = batch.run(attn)
            close(got, expected)
            if deterministic:
                found.append(got)
    for again in found[1:]:
        equal(again, found[0])


def test_a_mixed_batch_is_one_launch(gpu: EmulatedGpu) -> None:
    """A prompt beside single queries, some with histories long enough to be cut."""
    gpu.num_sms = 6
    batch = Batch([(1, 40), (1, 600), (70, 90), (1, 3), (1, 64)])
    batch.check()
    plan, *kernels = (name for name, _ in gpu.launches)
    assert "plan" in plan
    assert kernels == ["fa2_mixed_bfloat16_d128"]
