"""Attention where the conformance suite does not reach: shares of keys, tiles, far pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton.runtime import interpreter

import attnhub
from attnhub import BatchAttention, GraphLimits, Paged, PagedKV, Ragged, RaggedKV, Variant
from attnhub.plugin import AttentionProblem, Scales, describe
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import poison_, random_tensor, seeded
from attnhub.testing.tolerance import tolerance
from attnhub_triton_misc.attention import tiles
from attnhub_triton_misc.attention.planner import AttentionPlan

GAIN = attnhub.ScalarParam("gain")
VARIANTS = {
    "plain": Variant(),
    "causal": Variant(causal=True),
    "window": Variant(causal=True, window=(40, 0)),
    "sinks": Variant(sinks=True),
    "output_mod": Variant(output_mod=lambda x, b, h, q_idx, d: x * GAIN + (b + h + q_idx)),
}
PARAMS = {"sinks": torch.tensor([0.5, -torch.inf, 30.0, -1.0]), "gain": 0.5}


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ragged(
    device: torch.device,
    backend: str | None,
    variant: Variant,
    qo_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Output and LSE of 4/2 heads of 32 in float16."""
    generator = seeded(0)
    q, k, v = (
        random_tensor((sum(lens), heads, 32), torch.float16, device, generator)
        for lens, heads in ((qo_lens, 4), (kv_lens, 2), (kv_lens, 2))
    )
    attn = BatchAttention(
        4, 2, 32, torch.float16, Ragged(), variant=variant, device=device, backend=backend
    )
    indptrs = [torch.tensor([0, *lens]).cumsum(0).int() for lens in (qo_lens, kv_lens)]
    attn.plan(indptrs[0], RaggedKV(indptrs[1]))
    params = {spec.name: PARAMS[spec.name] for spec in variant.params}
    params = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in params.items()}
    return attn.run(q, (k, v), params=params, return_lse=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_keys_are_shared_and_merged(name: str, device: torch.device) -> None:
    # 700 keys: shares of several blocks, the last not full; 1 and 0: shares without keys.
    lens = ((1, 3, 1, 2), (700, 300, 1, 0))
    actual = ragged(device, None, VARIANTS[name], *lens)
    wanted = ragged(device, "reference", VARIANTS[name], *lens)
    assert_close(actual[0], wanted[0], name="out")
    assert_close(actual[1], wanted[1], kind="lse", tolerance=tolerance(torch.float16, kind="lse"))


@pytest.mark.parametrize("qo_len", [1, 7])
@pytest.mark.parametrize("form", ["causal", "mask", "masks", "output_mod", "no keys"])
def test_dense_tensors_of_any_strides(qo_len: int, form: str, device: torch.device) -> None:
    generator = seeded(3)
    batch, kv_len = 2, 0 if form == "no keys" else 300
    q = random_tensor((batch, 4, qo_len, 32), torch.float16, device, generator).transpose(1, 2)
    # As a cache of another library has it: heads first, with room for more keys.
    k, v = (
        random_tensor((batch, 2, kv_len + 8, 32), torch.float16, device, generator)[
            :, :, :kv_len
        ].transpose(1, 2)
        for _ in range(2)
    )
    mask = None
    if form.startswith("mask"):
        shape = (batch, qo_len, kv_len) if form == "masks" else (qo_len, kv_len)
        mask = (torch.rand(shape, generator=generator) < 0.5).to(device)
    variant = VARIANTS.get(form, Variant())
    params = {"gain": 0.5} if form == "output_mod" else {}

    def run() -> tuple[Tensor, Tensor]:
        return attnhub.attention(
            q, k, v, variant=variant, mask=mask, params=params, return_lse=True
        )

    actual = run()
    with attnhub.use("reference"):
        wanted = run()
    assert_close(actual[0], wanted[0], name="out")
    assert_close(actual[1], wanted[1], kind="lse", tolerance=tolerance(torch.float16, kind="lse"))


def test_decode_of_few_requests_has_shares() -> None:
    one = _problem(device=replace(describe("h200"), num_sms=132))
    assert _shares(one, batch=1, tokens=1, max_kv_len=32768) == 32
    assert _shares(one, batch=1, tokens=1, max_kv_len=300) == 2
    assert _shares(one, batch=1, tokens=1, max_kv_len=None) == 32
    assert _shares(one, batch=64, tokens=64, max_kv_len=32768) == 1
    assert _shares(replace(one, deterministic=True), batch=1, tokens=1, max_kv_len=32768) == 1


@given(
    batch=st.integers(1, 300),
    qo_len=st.integers(1, 40000),
    heads=st.sampled_from([(1, 1), (16, 4), (128, 1), (64, 64)]),
)
def test_shares_of_many_tiles_leave_little_behind(
    batch: int, qo_len: int, heads: tuple[int, int]
) -> None:
    problem = _problem(num_qo_heads=heads[0], num_kv_heads=heads[1])
    tile = tiles.Tiles(problem).best(qo_len)
    tokens = batch * qo_len
    shares = _shares(problem, batch=batch, tokens=tokens, max_kv_len=qo_len, tile=tile)
    if shares > 1:
        assert shares * tokens * heads[0] * (128 + 1) * 4 <= 2**25
    # A long prompt has tiles enough.
    if tokens * heads[0] >= 132 * 2 * tile.rows:
        assert shares == 1


def _shares(problem: AttentionProblem, *, tile: Any = None, **sizes: Any) -> int:
    ours = tiles.Tiles(problem)
    return ours.shares(tile or ours.best(1), **sizes)


def minus_infinity(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(h < 2, score, -torch.inf)


def not_a_number(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(h < 2, score, torch.nan)


@pytest.mark.parametrize("mod", [minus_infinity, not_a_number])
@pytest.mark.parametrize("rest", ["plain", "causal", "sinks", "output_mod"])
@pytest.mark.parametrize("kv_len", [5, 700])
def test_keys_whose_scores_say_nothing_are_seen(
    mod: Any, rest: str, kv_len: int, device: torch.device
) -> None:
    # 64 keys that every row sees take no mask; 700 keys lie in shares.
    lens = ((1, 2), (kv_len, 64))
    variant = replace(VARIANTS[rest], score_mod=mod)
    actual = ragged(device, None, variant, *lens)
    wanted = ragged(device, "reference", variant, *lens)
    assert torch.equal(actual[0].isnan(), wanted[0].isnan())
    assert torch.equal(actual[1].isnan(), wanted[1].isnan())
    assert_close(actual[0].nan_to_num(7), wanted[0].nan_to_num(7), name="out")
    assert_close(
        actual[1].nan_to_num(7, neginf=-torch.inf),
        wanted[1].nan_to_num(7, neginf=-torch.inf),
        kind="lse",
        tolerance=tolerance(torch.float16, kind="lse"),
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter shows what is read")
def test_nothing_is_read_behind_a_mask(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    mask = torch.ones(3, 70, dtype=torch.bool, device=device)
    builder = interpreter.interpreter_builder
    load, read = builder.create_masked_load, []

    def recorded(pointers: Any, keep: Any, *rest: Any) -> Any:
        if pointers.get_element_ty().primitive_bitwidth == 8:
            read.append(pointers.data[keep.data])
        return load(pointers, keep, *rest)

    monkeypatch.setattr(builder, "create_masked_load", recorded)
    q = torch.ones(1, 3, 2, 16, dtype=torch.float16)
    attnhub.attention(q, *torch.ones(2, 1, 70, 1, 16, dtype=torch.float16), mask=mask)
    places = np.concatenate(read).astype(np.int64) - mask.data_ptr()
    assert np.unique(places).tolist() == list(range(mask.numel()))


def test_no_dense_requests_with_masks(device: torch.device) -> None:
    q, k = (torch.empty(0, n, 2, 16, dtype=torch.float16, device=device) for n in (3, 5))
    mask = torch.ones(0, 3, 5, dtype=torch.bool, device=device)
    assert attnhub.attention(q, k, k, mask=mask).shape == q.shape


def test_dense_calls_share_a_plan_but_no_state(device: torch.device) -> None:
    """As threads, streams and captured graphs have it: of like facts, other sizes between."""
    generator = seeded(5)
    calls = []
    for batch, qo_len, kv_len in ((1, 1, 30), (3, 2, 500), (2, 40, 40)):
        q, k, v = (
            random_tensor((batch, n, heads, 32), torch.float16, device, generator)
            for n, heads in ((qo_len, 4), (kv_len, 2), (kv_len, 2))
        )
        calls.append((q, k, v))
    plan = AttentionPlan(
        AttentionProblem.of(
            describe(device), kv="dense", num_qo_heads=4, num_kv_heads=2, head_dim=32,
            dtype="float16",
        )
    )  # fmt: skip
    before = dict(vars(plan))
    for q, k, v in calls:
        out = poison_(torch.empty_like(q))
        plan.run(q, k, v, out, None, None, Scales(), {})
        with attnhub.use("reference"):
            assert_close(out, attnhub.attention(q, k, v), name="out")
    assert vars(plan) == before


def test_pages_whose_places_pass_31_bits(device: torch.device) -> None:
    # A page stride of 2^26 elements: page 40 begins past 2^31. Only what is used is touched.
    if device.type == "cpu":
        storage = torch.empty(2**31 + 2**30, dtype=torch.float16)  # never touched, so no memory
    else:
        storage = torch.empty(2**31 + 2**30, dtype=torch.float16, device=device)
    cache = storage.as_strided((41, 2, 4, 1, 16), (2**26, 64, 16, 16, 1))
    generator = seeded(1)
    new = random_tensor((2, 2, 4, 1, 16), torch.float16, device, generator)
    cache[40], cache[3] = new[0], new[1]
    q = random_tensor((1, 1, 16), torch.float16, device, generator)
    attn = BatchAttention(1, 1, 16, torch.float16, Paged(4), device=device)
    attn.plan(i32(0, 1), PagedKV(i32(0, 2), i32(40, 3), i32(3)))
    actual = attn.run(q, cache)
    rows = new.transpose(0, 1).reshape(2, 8, 16).float()[:, :7]
    weights = torch.softmax(rows[0] @ q.view(16).float() / 4.0, 0)
    assert_close(actual.view(16), (weights @ rows[1]).half())


def test_outputs_whose_heads_pass_31_bits(device: torch.device) -> None:
    storage = torch.empty(3 * 2**30 + 64, dtype=torch.float16, device=device)  # touched at 4 heads
    out = storage.as_strided((1, 2, 4, 16), (32, 16, 2**30, 1))
    q, k, v = random_tensor((3, 1, 2, 4, 16), torch.float16, device, seeded(4))
    attnhub.attention(q, k, v, out=out)
    with attnhub.use("reference"):
        assert_close(out, attnhub.attention(q, k, v), name="out")


def test_a_query_mod_may_take_nothing_of_the_query(device: torch.device) -> None:
    variant = Variant(query_mod=lambda x, b, h, q_idx, d: d * 0.25)
    actual = ragged(device, None, variant, (3, 1), (5, 9))
    wanted = ragged(device, "reference", variant, (3, 1), (5, 9))
    assert_close(actual[0], wanted[0], name="out")


def test_rows_past_the_batch_of_a_graph_are_zero(device: torch.device) -> None:
    limits = GraphLimits(max_batch=4, max_qo_tokens=8, max_pages=6)
    attn = BatchAttention(2, 1, 16, torch.float16, Paged(4), device=device, graph=limits)
    attn.plan(i32(0, 1, 2), PagedKV(i32(0, 1, 3), i32(0, 2, 1), i32(4, 1)))
    generator = seeded(2)
    q = poison_(torch.empty(8, 2, 16, dtype=torch.float16, device=device))
    q[:2] = random_tensor((2, 2, 16), torch.float16, device, generator)
    cache = random_tensor((3, 2, 4, 1, 16), torch.float16, device, generator)
    out, lse = attn.run(q, cache, return_lse=True)
    assert torch.equal(out[2:], torch.zeros_like(out[2:]))
    assert bool((lse[2:] == -torch.inf).all())
    assert bool(lse[:2].isfinite().all())


def _problem(**facts: Any) -> AttentionProblem:
    device = facts.pop("device", describe("h200"))
    return AttentionProblem.of(
        device,
        **{
            "kv": "paged",
            "page_size": 16,
            "num_qo_heads": 16,
            "num_kv_heads": 4,
            "head_dim": 128,
            "dtype": "bfloat16",
            **facts,
        },
    )


@pytest.mark.parametrize("sm", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("head_dim", [16, 64, 128, (192, 128), 256])
def test_every_gpu_has_a_legal_tile_for_every_length(sm: str, head_dim: Any) -> None:
    problem = _problem(device=describe(sm), head_dim=head_dim)
    for length in (None, 0, 1, 3, 16, 17, 100, 5000):
        tile = tiles.Tiles(problem).best(length)
        assert tile.is_legal(problem)
        assert tile.reason


@pytest.mark.parametrize(
    ("sm", "head_dim", "length", "rows", "keys"),
    [
        ("h200", 128, 1, 16, 128),
        ("h200", 128, 4096, 128, 64),
        ("h200", 256, 4096, 128, 32),  # 64 keys spill
        ("h200", 128, 16, 64, 64),
        ("a100", 128, 4096, 128, 32),  # 64 keys spill, as mma.sync holds the queries too
        ("rtx4090", 256, 1, 16, 64),  # 99 KB of shared memory
    ],
)
def test_tiles(sm: str, head_dim: int, length: int, rows: int, keys: int) -> None:
    tile = tiles.Tiles(_problem(device=describe(sm), head_dim=head_dim)).best(length)
    assert (tile.rows, tile.keys) == (rows, keys)
