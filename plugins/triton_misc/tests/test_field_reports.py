"""Faults that users of other libraries met, one test a kind; docs/field_reports.md lists them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import BatchAttention, Paged, PagedKV, Ragged, RaggedKV, Variant
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import poison_, random_tensor, seeded
from attnhub.testing.tolerance import tolerance

HALF = torch.float16


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_very_negative_scores_do_not_lose_to_masked_keys(device: torch.device) -> None:
    # One key with a logit of -65536 before one that a custom mask hides, whose logit is 0.
    q = torch.full((1, 1, 16), 64.0, dtype=HALF, device=device)
    k = torch.zeros(2, 1, 16, dtype=HALF, device=device)
    k[0] = -256.0
    v = torch.ones(2, 1, 16, dtype=HALF, device=device)
    v[1] = 7.0
    attn = BatchAttention(1, 1, 16, HALF, Ragged(), device=device)
    attn.plan(i32(0, 1), RaggedKV(i32(0, 2)), mask=torch.tensor([True, False]))
    out, lse = attn.run(q, (k, v), return_lse=True)
    assert torch.equal(out, torch.ones_like(out))
    assert_close(lse, torch.full_like(lse, -65536.0), kind="lse", tolerance=tolerance(HALF))


def test_merging_states_of_any_magnitude(device: torch.device) -> None:
    lse = torch.tensor([[-66854.0], [-66854.5], [3.0e4], [-torch.inf]], device=device)
    other = torch.tensor([[-66854.0], [-torch.inf], [-3.0e4], [-torch.inf]], device=device)
    o = torch.full((4, 1, 16), 2.0, dtype=HALF, device=device)
    o[3] = torch.nan  # a state that saw no key holds anything
    o_b = torch.full((4, 1, 16), 4.0, dtype=HALF, device=device)
    o_b[1] = torch.nan
    out, merged = attnhub.cascade.merge_state(o, lse, o_b, other)
    assert out[:, 0, 0].tolist() == [3.0, 2.0, 2.0, 0.0]
    wanted = [-66854.0 + math.log(2.0), -66854.5, 3.0e4, -math.inf]
    torch.testing.assert_close(merged.cpu()[:, 0], torch.tensor(wanted))


def test_halves_of_64_keys_merge_to_the_whole(device: torch.device) -> None:
    generator = seeded(0)
    q = random_tensor((3, 2, 32), HALF, device, generator)
    k, v = (random_tensor((64, 1, 32), HALF, device, generator) for _ in range(2))

    def attend(begin: int, end: int) -> tuple[Tensor, Tensor]:
        attn = BatchAttention(2, 1, 32, HALF, Ragged(), device=device)
        attn.plan(i32(0, 3), RaggedKV(i32(0, end - begin)))
        return attn.run(q, (k[begin:end], v[begin:end]), return_lse=True)

    out, lse = attnhub.cascade.merge_state(*attend(0, 20), *attend(20, 64))
    whole = attend(0, 64)
    assert_close(out, whole[0])
    torch.testing.assert_close(lse, whole[1], rtol=1e-5, atol=1e-4)


def test_appending_to_a_layer_of_a_pool_from_a_packed_projection(device: torch.device) -> None:
    pool = poison_(torch.empty(5, 3, 2, 4, 2, 16, dtype=HALF, device=device))
    before, layer = pool.clone(), pool[:, 1]
    qkv = random_tensor((3, 8, 16), HALF, device, seeded(1))
    table = PagedKV(i32(0, 2).to(device), i32(4, 2).to(device), i32(3).to(device))
    requests, positions = i32(0, 0, -1).to(device), i32(3, 5, 0).to(device)
    attnhub.page.append_paged_kv(qkv[:, 4:6], qkv[:, 6:], layer, table, requests, positions)
    before[4, 1, :, 3] = torch.stack([qkv[0, 4:6], qkv[0, 6:]])
    before[2, 1, :, 1] = torch.stack([qkv[1, 4:6], qkv[1, 6:]])
    assert torch.equal(pool.view(torch.int16), before.view(torch.int16))


@pytest.mark.parametrize("batch", [1, 512])
def test_positions_of_a_batch(batch: int, device: torch.device) -> None:
    lens = torch.arange(batch) % 3
    indptr = torch.cat([torch.zeros(1), lens.cumsum(0)]).int().to(device)
    ends = (lens + 10).int().to(device)
    tokens = int(lens.sum()) + 2
    requests, positions = attnhub.page.get_batch_indices_positions(indptr, ends, tokens)
    owners = torch.repeat_interleave(torch.arange(batch), lens)
    inside = torch.cat([torch.arange(n) for n in lens.tolist()] or [torch.zeros(0)])
    assert requests.tolist() == [*owners.tolist(), -1, -1]
    assert positions.tolist() == [*(10 + inside.long()).tolist(), -1, -1]


@pytest.mark.parametrize("hidden", [111, 500, 32768, 40000])
def test_fused_norms_of_odd_and_of_long_rows(hidden: int, device: torch.device) -> None:
    generator = seeded(2)
    wide = random_tensor((3, hidden + 1), torch.bfloat16, device, generator)
    x, residual = wide[:, 1:], random_tensor((3, hidden), torch.bfloat16, device, generator)
    weight = random_tensor((hidden,), torch.bfloat16, device, generator)
    kept, total = wide[:, 0].clone(), x.float() + residual.float()
    attnhub.norm.fused_add_rmsnorm(x, residual, weight)
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    assert_close(x, (total * scale * weight.float()).bfloat16())
    assert torch.equal(residual, total.bfloat16())
    assert torch.equal(wide[:, 0], kept)


@pytest.mark.parametrize("group", [1, 5, 7])
def test_gqa_groups(group: int, device: torch.device) -> None:
    generator = seeded(3)
    q = random_tensor((3, group, 32), HALF, device, generator)
    cache = random_tensor((2, 2, 8, 1, 32), HALF, device, generator)
    attn = BatchAttention(group, 1, 32, HALF, Paged(8), variant=Variant(causal=True), device=device)
    attn.plan(i32(0, 3), PagedKV(i32(0, 2), i32(1, 0), i32(5)))
    out = attn.run(q, cache)
    k, v = cache[[1, 0]].transpose(0, 1).reshape(2, 16, 32)[:, :13].float()
    scores = torch.einsum("qhd,kd->hqk", q.float(), k) / math.sqrt(32)
    hidden = torch.arange(13, device=device) > torch.arange(10, 13, device=device)[:, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    assert_close(out, torch.einsum("hqk,kd->qhd", weights, v).half())


def test_a_window_without_causal_over_pages(device: torch.device) -> None:
    generator = seeded(4)
    q = random_tensor((150, 1, 16), HALF, device, generator)
    cache = random_tensor((20, 2, 8, 1, 16), HALF, device, generator)
    variant = Variant(window=(10, 3))
    attn = BatchAttention(1, 1, 16, HALF, Paged(8), variant=variant, device=device)
    attn.plan(i32(0, 150), PagedKV(i32(0, 20), torch.arange(20).int(), i32(6)))
    out = attn.run(q, cache)
    k, v = cache.transpose(0, 1).reshape(2, 160, 16)[:, :158].float()
    apart = torch.arange(158, device=device) - torch.arange(8, 158, device=device)[:, None]
    scores = (q[:, 0].float() @ k.T / 4.0).masked_fill((apart < -10) | (apart > 3), -math.inf)
    assert_close(out[:, 0], (scores.softmax(-1) @ v).half())
