"""The append that turns and quantises: values, what padding gets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import Rope, Scales
from attnhub.attn import PagedKV
from attnhub.errors import InvalidArgument
from attnhub.page import rope_append, rope_append_paged_kv, workloads
from attnhub.page.problem import RopeAppendPagedKVProblem
from attnhub.page.reference import Layout
from attnhub.testing.compare import assert_close
from tests.page.cache_cases import (
    DIM_K,
    DIM_V,
    HEADS,
    PAGE,
    PAGES,
    POSITION,
    REQUEST,
    SLOTS,
    TABLE,
    bits,
    caches,
    int32,
    nan,
    normal,
    replaced,
    written,
)

QO_HEADS, MAX_POSITION = 5, 12
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PADDING = 2  # the token of TABLE's batch that goes nowhere


def turns(rotary_dim: int = DIM_K) -> Tensor:
    return attnhub.rope.cos_sin_cache(MAX_POSITION, DIM_K, Rope(theta=7.0, rotary_dim=rotary_dim))


def turned(x: Tensor, table: Tensor, *, interleaved: bool = False) -> Tensor:
    """By complex numbers, in float64; padding as it is."""
    cos, sin = table.double()[POSITION.clamp(min=0).long()].chunk(2, dim=-1)
    cos[PADDING], sin[PADDING] = 1.0, 0.0
    n = table.shape[1]
    pairs = x[..., :n].double().unflatten(-1, (n // 2, 2) if interleaved else (2, n // 2))
    pairs = pairs if interleaved else pairs.mT
    y = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[:, None]
    )
    y = (y if interleaved else y.mT).flatten(-2)
    return torch.cat([y, x[..., n:].double()], dim=-1)


def projected(dtype: torch.dtype = torch.float32, dim_v: int = DIM_K) -> list[Tensor]:
    shapes = ((QO_HEADS, DIM_K), (HEADS, DIM_K), (HEADS, dim_v))
    return [normal(5, *shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("form", ["one-tensor", "layer-of-a-stack", "two-dims"])
@pytest.mark.parametrize("rotary_dim", [DIM_K, 2], ids=["whole heads", "part of a head"])
def test_values(form: str, layout: Layout, rotary_dim: int, *, interleaved: bool) -> None:
    cache, table = caches(form, layout, torch.float32), turns(rotary_dim)
    q, k, v = projected(dim_v=cache.v.shape[3])
    k_expected, v_expected = (
        written(c, x.float())
        for c, x in ((cache.k, turned(k, table, interleaved=interleaved)), (cache.v, v))
    )
    out = rope_append_paged_kv(
        (q, k, v), table, cache.given, TABLE, REQUEST, POSITION,
        interleaved=interleaved, layout=layout,
    )  # fmt: skip
    assert_close(out, turned(q, table, interleaved=interleaved).float())
    assert torch.equal(bits(cache.v), v_expected)
    assert_close(cache.k.contiguous(), k_expected.view(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_keys_are_rounded_once(dtype: torch.dtype) -> None:
    cache, table = caches("one-tensor", "NHD", dtype), turns()
    qkv = torch.cat(projected(dtype), dim=1)
    q, k = qkv[:, :QO_HEADS], qkv[:, QO_HEADS : QO_HEADS + HEADS]
    out = rope_append_paged_kv(qkv, table, cache.given, TABLE, REQUEST, POSITION)
    expected = attnhub.rope.apply_rope_cos_sin(q, k, POSITION.clamp(min=0), table)
    assert torch.equal(bits(cache.k), written(nan(*cache.k.shape, dtype=dtype), expected[1]))
    assert torch.equal(bits(out[:PADDING]), bits(expected[0][:PADDING]))
    assert torch.equal(bits(out[PADDING]), bits(q[PADDING]))


@pytest.mark.parametrize("kv_dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("of", ["numbers", "one element", "heads"])
def test_fp8_is_scaled_and_saturates(of: str, kv_dtype: torch.dtype) -> None:
    cache, table = caches("one-tensor", "NHD", kv_dtype), turns()
    q, k, v = projected()
    v[0, 0, :3] = torch.tensor([1e6, -torch.inf, torch.nan])
    given: Any = (0.5, 2.0, 1.5)
    if of == "one element":
        given = torch.tensor([[0.5], [2.0], [1.5]]).unbind()
    elif of == "heads":
        given = [torch.linspace(0.5, 2.0, n) for n in (QO_HEADS, HEADS, HEADS)]
    columns = [x.reshape(-1, 1) if isinstance(x, Tensor) else x for x in given]
    limit = torch.finfo(kv_dtype).max
    stored = [
        (x.float() / column).clamp(-limit, limit).to(kv_dtype)
        for x, column in zip((turned(q, table), turned(k, table), v), columns, strict=True)
    ]
    expected = [written(c, x) for c, x in zip((cache.k, cache.v), stored[1:], strict=True)]
    out = torch.empty(5, QO_HEADS, DIM_K, dtype=kv_dtype)
    result = rope_append_paged_kv(
        (q, k, v), table, cache.given, TABLE, REQUEST, POSITION, scales=Scales(*given), out=out
    )
    assert result is out
    assert torch.equal(bits(out), bits(stored[0]))
    assert torch.equal(bits(cache.k), expected[0])
    assert torch.equal(bits(cache.v), expected[1])
    assert cache.v[SLOTS[0]][0, :3].float().tolist()[:2] == [limit, -limit]


def test_queries_in_place_keep_their_dtype_beside_an_fp8_cache() -> None:
    qkv = torch.cat(projected(torch.bfloat16), dim=1)
    q, rest = qkv[:, :QO_HEADS], qkv[:, QO_HEADS:].clone()
    expected = turned(q, turns()).bfloat16()
    cache = caches("one-tensor", "NHD", E4M3).given
    assert rope_append_paged_kv(qkv, turns(), cache, TABLE, REQUEST, POSITION, out=q) is q
    assert_close(q, expected)
    assert torch.equal(qkv[:, QO_HEADS:], rest)


@pytest.mark.parametrize("tokens", [0, 3], ids=["no token", "only padding"])
def test_nothing_to_append(tokens: int) -> None:
    cache, nobody = nan(PAGES, 2, PAGE, HEADS, DIM_K), torch.full((tokens,), -1).int()
    qkv = normal(tokens, QO_HEADS + 2 * HEADS, DIM_K)
    for table in (TABLE, PagedKV(int32(0), int32(), int32())):
        q = rope_append_paged_kv(qkv, turns(), cache, table, nobody, nobody)
        assert torch.equal(q, qkv[:, :QO_HEADS])
    assert bool(cache.isnan().all())


def call(**changed: Any) -> None:
    """A good call with some arguments replaced."""
    arguments = {
        "qkv": tuple(projected()),
        "cos_sin_cache": turns(),
        "kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K),
        "table": TABLE,
        "batch_indices": REQUEST,
        "positions": POSITION,
    }
    rope_append_paged_kv(**{**arguments, **changed})


def part(index: int, x: Any) -> dict[str, Any]:
    """q, k or v replaced."""
    return {"qkv": tuple(x if i == index else y for i, y in enumerate(projected()))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"qkv": 3}, r"qkv is a int, needs one tensor or a tuple \(q, k, v\)", id="3"),
        pytest.param({"qkv": (1, 2)}, "qkv has 2 entries, needs a tuple", id="a pair"),
        pytest.param(part(1, "k"), "k must be a torch.Tensor, got str", id="text"),
        pytest.param(
            {"qkv": normal(5, 2 * HEADS, DIM_K)},
            r"qkv has shape \[5, 6, 6\]; for this cache give \[tokens, qo_heads \+ 6, 6\]$",
            id="packed without queries",
        ),
        pytest.param(
            {
                "qkv": normal(5, 11, DIM_K),
                "kv_cache": tuple(torch.zeros(PAGES, PAGE, HEADS, d) for d in (DIM_K, DIM_V)),
            },
            r"or a tuple \(q, k, v\), as v has 5",
            id="packed with two dims",
        ),
        pytest.param(part(0, normal(5, 6)), r"q has shape .* \[tokens, qo_heads, 6\]", id="q 2-D"),
        pytest.param(part(1, normal(5, 2, 6)), r"k has shape .* needs \[5, 3, 6\]", id="k heads"),
        pytest.param(part(2, normal(4, 3, 6)), r"v has shape .* needs \[5, 3, 6\]", id="v tokens"),
        pytest.param(part(0, projected()[0].double()), "q has dtype float64", id="float64"),
        pytest.param(part(2, projected()[2].half()), "v has dtype float16, needs float32", id="v"),
        pytest.param(part(1, projected()[1].to("meta")), "k is on meta, but q is on cpu", id="on"),
        pytest.param(part(0, normal(5, 6, 5).mT), r"q has stride 5 .* q\.contiguous\(\)", id="st"),
        pytest.param(part(1, projected()[1].requires_grad_()), "forward only", id="grad"),
        pytest.param(
            {"cos_sin_cache": turns().double()}, "cos_sin_cache has dtype float64", id="table dtype"
        ),
        pytest.param(
            {"cos_sin_cache": torch.ones(12, 8)},
            r"cos_sin_cache has shape \[12, 8\], .* to the head's 6; make it with attnhub\.rope",
            id="table too wide",
        ),
        pytest.param(
            {"cos_sin_cache": turns()[:8]},
            r"positions\[0\] is 8, needs 0 to 7 \(the rows of cos_sin_cache\)",
            id="table too short",
        ),
        pytest.param(
            {"kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K).half()},
            "k_cache has dtype float16, needs float32 or float8_e4m3fn or float8_e5m2",
            id="cache dtype",
        ),
        pytest.param(
            {
                "kv_cache": (
                    torch.zeros(PAGES, PAGE, HEADS, DIM_K).to(E4M3),
                    torch.zeros(PAGES, PAGE, HEADS, DIM_K),
                )
            },
            "v_cache has dtype float32, needs float8_e4m3fn",
            id="caches of two dtypes",
        ),
        pytest.param(
            {"kv_cache": torch.zeros(PAGES, 2, PAGE, DIM_K, HEADS).mT},
            "k_cache has stride 3",
            id="cache stride",
        ),
        pytest.param({"layout": "BHSD"}, "layout='BHSD'; give 'NHD' or 'HND'", id="layout"),
        pytest.param({"table": (1, 2)}, "table is a tuple; give PagedKV", id="page table"),
        pytest.param(
            {"table": replaced(indices=int32(7, 8, 6, 0, 5))}, r"indices\[1\] is 8", id="page id"
        ),
        pytest.param(
            {"positions": int32(11, 8, -1, 3, 0)}, "token 1 goes to position 8", id="place"
        ),
        pytest.param(
            {"out": torch.empty(5, QO_HEADS, DIM_K, dtype=E4M3)},
            "out has dtype float8_e4m3fn, needs float32; convert",
            id="FP8 queries beside a float cache",
        ),
        pytest.param({"out": torch.empty(5, 4, DIM_K)}, r"out has shape \[5, 4, 6\]", id="out"),
        pytest.param(
            {"scales": Scales(k=2.0)},
            "scales.k is given, but kv_cache is float32 and only FP8 is scaled; leave it at 1.0",
            id="scale of floats",
        ),
        pytest.param(
            {
                "scales": Scales(q=torch.ones(())),
                "kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K).to(E4M3),
            },
            "scales.q is given, but out is float32",
            id="scale of queries that are not quantised",
        ),
        pytest.param({"scales": 2.0}, "scales is a float, needs Scales", id="no scales"),
    ],
)
def test_a_bad_call_is_refused_before_it_writes(changed: dict[str, Any], message: str) -> None:
    cache = torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K)
    with pytest.raises(InvalidArgument, match=message):
        call(**{"kv_cache": cache, **changed})
    assert not cache.any()


# --- as an op -------------------------------------------------------------------------------------


def test_is_a_well_formed_op() -> None:
    overload = rope_append._rope_append_paged_kv.overload
    q, k, v = projected()
    cache = torch.zeros(2, PAGES, PAGE, HEADS, DIM_K)
    index = (TABLE.indptr, TABLE.indices, REQUEST, POSITION)
    scales = [None, torch.ones(HEADS), None], [1.0, 1.0, 2.0]
    arguments = (q, k, v, turns(), torch.empty_like(q), *cache, *scales, *index, False, "NHD")
    torch.library.opcheck(overload, arguments)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fp8", [False, True], ids=["float", "FP8"])
def test_compiles_whole(*, fp8: bool, dynamic: bool) -> None:
    torch.compiler.reset()
    table = turns()

    def step(qkv: Tensor, cache: Tensor, scale: Tensor) -> Tensor:
        scales = Scales(k=scale, v=2.0) if fp8 else Scales()
        return rope_append_paged_kv(qkv * 2, table, cache, TABLE, REQUEST, POSITION, scales=scales)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    qkv, scale = torch.cat(projected(), dim=1), torch.tensor(0.5)
    eager, traced = (
        torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K).to(E4M3 if fp8 else torch.float32)
        for _ in range(2)
    )
    assert torch.equal(compiled(qkv, traced, scale), step(qkv, eager, scale))
    assert torch.equal(bits(traced), bits(eager))
    assert bits(traced).any()


def test_workloads_run() -> None:
    for workload in workloads.rope_append_paged_kv:
        if "small" in workload.tags:
            q, cache = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()
            rows = workload.facts["new"] * (workload.facts["requests"] - 1)
            assert int((cache.float() != 0).any(-1).sum()) == rows * 2 * 8
            assert bool(q.isfinite().all())


def test_problem_tells_work_and_refuses_what_no_call_has() -> None:
    facts: dict[str, Any] = {
        "dtype": "bfloat16",
        "page_size": 16,
        "num_qo_heads": 32,
        "num_kv_heads": 8,
        "head_dim_qk": 128,
        "head_dim_vo": 64,
        "rotary_dim": 64,
    }
    work = RopeAppendPagedKVProblem.of("h200", **facts, tokens=32).work()
    entries = 8 * (128 + 64)
    assert work.bytes == 32 * (32 * 128 * 4 + entries * 4 + 64 * 4)
    assert work.flops == 3 * 32 * (32 + 8) * 64
    stored = RopeAppendPagedKVProblem.of("h200", **facts, fp8="float8_e5m2", fp8_q=True).work()
    assert stored.bytes == 128 * (32 * 128 * 3 + entries * 3 + 64 * 4)
    with pytest.raises(InvalidArgument, match="rotary_dim=130: give an even number up to head_dim"):
        RopeAppendPagedKVProblem.of("h200", **{**facts, "rotary_dim": 130})
    with pytest.raises(InvalidArgument, match="fp8_q=True: queries are stored as FP8 only if"):
        RopeAppendPagedKVProblem.of("h200", **facts, fp8_q=True)
