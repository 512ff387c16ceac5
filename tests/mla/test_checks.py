"""Every wrong argument is refused with what was given, what is accepted, and what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnhub import DTypes, GraphLimits, PagedKV, RaggedKV
from attnhub.errors import BackendUnsupported, InvalidArgument, NotPlanned, UnknownName
from attnhub.mla import BatchMLA, MLAScales
from tests.mla.problems import SmallMLA, batch_mla, ints, make

PROBLEM = SmallMLA()  # 4 query tokens, pages of 4, a page table of 3 pages in a cache of 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"scale": None}, r"scale is not given.*\(128 \+ 64\) \*\* -0.5", id="none"),
        pytest.param({"scale": None}, r"not 1/sqrt\(8 \+ 4\)", id="none: the wrong one is named"),
        pytest.param({"scale": 0.0}, r"scale=0.0: needs a finite number > 0", id="zero"),
        pytest.param({"scale": math.nan}, r"scale=nan: needs a finite number", id="nan"),
        pytest.param({"scale": "auto"}, r"scale='auto': needs a finite number", id="text"),
        pytest.param({"head_dim": 576}, r"head_dim=576: give two integers", id="one dim"),
        pytest.param({"head_dim": (512, 0)}, r"head_dim=\(512, 0\): give two", id="zero dim"),
        pytest.param({"page_size": 0}, r"page_size=0: needs an integer >= 1", id="no page"),
        pytest.param({"page_size": 2.0}, r"page_size=2.0: needs an integer", id="float page"),
        pytest.param(
            {"graph": GraphLimits(max_batch=1, max_qo_tokens=1, offsets=True)},
            r"no custom mask and no RoPE offsets",
            id="graph limits of attention",
        ),
        pytest.param(
            {"graph": GraphLimits(max_batch=1, max_qo_tokens=1), "device": None},
            r"graph=\.\.\. fixes buffers now, so it needs device",
            id="graph without device",
        ),
    ],
)
def test_constructor_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        batch_mla(PROBLEM, **changes)


@pytest.mark.parametrize("heads", [0, -1, True, 2.0, None])
def test_constructor_refuses_heads(heads: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"num_heads={heads}: needs an integer >= 1"):
        BatchMLA(heads, "bfloat16", page_size=1, scale=1.0)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        pytest.param(
            DTypes("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
            r"only the cache may be FP8: use DTypes\(q='bfloat16', kv='float8_e4m3fn'",
            id="q in FP8",
        ),
        pytest.param("float8_e5m2", r"out dtype 'float8_e5m2' is not", id="all in FP8"),
        pytest.param("float64", r"q dtype 'float64' is not supported; use one of", id="float64"),
        pytest.param(
            DTypes("bfloat16", "bfloat16", "float8_e4m3fn"),
            r"out dtype 'float8_e4m3fn' is not supported",
            id="output in FP8",
        ),
        pytest.param(
            DTypes("bfloat16", "int8", "bfloat16"), r"kv dtype 'int8' is not", id="int8 cache"
        ),
    ],
)
def test_constructor_refuses_dtypes(dtype: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        BatchMLA(2, dtype, page_size=1, scale=1.0)


def test_a_backend_nobody_registered() -> None:
    t = make(PROBLEM)
    with pytest.raises(UnknownName, match="nonesuch"):
        batch_mla(PROBLEM, backend="nonesuch").plan(t.qo_indptr, t.table)


def test_a_backend_that_serves_another_op() -> None:
    t = make(PROBLEM)
    with pytest.raises(BackendUnsupported, match="'torch_sdpa' is required"):
        batch_mla(PROBLEM, backend="torch_sdpa").plan(t.qo_indptr, t.table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"qo_indptr": ints(0, 1, 4).long()},
            r"qo_indptr has dtype int64, needs int32; use qo_indptr.to\(torch.int32\)",
            id="int64",
        ),
        pytest.param({"qo_indptr": ints()}, r"qo_indptr is empty", id="no leading 0"),
        pytest.param({"qo_indptr": ints(1, 2, 4)}, r"qo_indptr\[0\] is 1, needs 0", id="from 1"),
        pytest.param(
            {"qo_indptr": ints(0, 3, 1)}, r"qo_indptr decreases at 2 \(3 to 1\)", id="decreases"
        ),
        pytest.param(
            {"qo_indptr": ints(0, 1)}, r"indptr has shape \[3\], needs \[2\]", id="other batch"
        ),
        pytest.param({"indptr": ints(0, 2, 1)}, r"indptr decreases at 2", id="pages decrease"),
        pytest.param(
            {"indices": ints(0)}, r"indptr ends at 3 but indices has 1 page ids", id="too few ids"
        ),
        pytest.param(
            {"indices": ints(0, -1, 2)},
            r"indices\[1\] is -1, needs >= 0 \(page ids\)",
            id="negative id",
        ),
        pytest.param(
            {"last_page_len": ints(1, 5)},
            r"last_page_len\[1\] is 5, needs 1 to page_size=4",
            id="more than a page",
        ),
        pytest.param(
            {"last_page_len": ints(0, 4)}, r"last_page_len\[0\] is 0, needs 1 to", id="empty page"
        ),
        pytest.param(
            {"max_qo_len": 2}, r"max_qo_len=2 but the longest request has 3", id="query bound"
        ),
        pytest.param(
            {"max_kv_len": 4}, r"max_kv_len=4 but the longest request has 5", id="key bound"
        ),
    ],
)
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    t = make(PROBLEM)
    mla = batch_mla(PROBLEM)
    names = ("indptr", "indices", "last_page_len")
    table = PagedKV(*(changes.get(n, getattr(t.table, n)) for n in names))
    bounds = {n: v for n, v in changes.items() if n.startswith("max_")}
    with pytest.raises(InvalidArgument, match=message):
        mla.plan(changes.get("qo_indptr", t.qo_indptr), table, **bounds)
    with pytest.raises(NotPlanned, match=r"run\(\) before plan\(\)"):
        mla.run(t.q_nope, t.q_pe, t.kv)


def test_plan_refuses_other_metadata_and_an_unknown_device() -> None:
    t = make(PROBLEM)
    with pytest.raises(InvalidArgument, match="kv_metadata is a RaggedKV, needs PagedKV"):
        batch_mla(PROBLEM).plan(t.qo_indptr, RaggedKV(t.table.indptr))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"no device: give BatchMLA\(device=\.\.\.\)"):
        batch_mla(PROBLEM, device=None).plan(t.qo_indptr, t.table)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        pytest.param("q_nope", lambda x: x[0], r"q_nope has shape \[2, 8\], needs", id="one row"),
        pytest.param("q_nope", lambda x: x[:, :1], r"needs \[tokens, 2, 8\]", id="other heads"),
        pytest.param(
            "q_nope",
            lambda x: x[:3],
            r"q_nope has 3 rows, but the plan has 4 query tokens; plan\(\) again",
            id="another batch",
        ),
        pytest.param("q_pe", lambda x: x[:3], r"q_pe has shape .*needs \[4, 2, 4\]", id="rows"),
        pytest.param("q_pe", lambda x: x[..., :3], r"q_pe has shape \[4, 2, 3\]", id="rotary dim"),
        pytest.param("q_pe", lambda x: x.half(), r"q_pe has dtype float16, needs", id="dtype"),
        pytest.param(
            "q_nope",
            lambda x: x.to("meta"),
            r"q_nope is on meta, but this attention is on cpu; move",
            id="device",
        ),
        pytest.param(
            "q_nope",
            lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
            r"q_nope has stride 8 in its last dimension, needs 1",
            id="last dim strided",
        ),
        pytest.param(
            "q_pe", lambda x: x.clone().requires_grad_(), r"forward only", id="a gradient"
        ),
        pytest.param(
            "ckv", lambda x: x[:, :3], r"ckv_cache has shape .*needs \[pages, 4, 8\]", id="page"
        ),
        pytest.param(
            "ckv", lambda x: x.unsqueeze(2), r"ckv_cache has shape \[4, 4, 1, 8\]", id="a head dim"
        ),
        pytest.param("ckv", lambda x: x.half(), r"ckv_cache has dtype float16", id="cache dtype"),
        pytest.param(
            "kpe", lambda x: x[:3], r"kpe_cache has shape \[3, 4, 4\], needs \[4, 4", id="pages"
        ),
        pytest.param(
            "kpe",
            lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
            r"kpe_cache has stride 4 in its last dimension",
            id="cache strided",
        ),
        pytest.param("out", lambda x: x[:3], r"out has shape \[3, 2, 8\]", id="out rows"),
        pytest.param("out", lambda x: x.half(), r"out has dtype float16", id="out dtype"),
    ],
)
def test_run_refuses(name: str, change: Any, message: str) -> None:
    t = make(PROBLEM)
    mla = batch_mla(PROBLEM)
    mla.plan(t.qo_indptr, t.table)
    given = {"q_nope": t.q_nope, "q_pe": t.q_pe, "ckv": t.kv[0], "kpe": t.kv[1]}
    given["out"] = torch.empty_like(t.q_nope)
    mla.run(t.q_nope, t.q_pe, t.kv, out=given["out"])  # what passed once must not hide the change
    given[name] = change(given[name])
    with pytest.raises(InvalidArgument, match=message):
        mla.run(given["q_nope"], given["q_pe"], (given["ckv"], given["kpe"]), out=given["out"])


def test_run_refuses_one_tensor_for_both_caches() -> None:
    t = make(PROBLEM)
    mla = batch_mla(PROBLEM)
    mla.plan(t.qo_indptr, t.table)
    with pytest.raises(InvalidArgument, match=r"kv is a Tensor.*cache.split\(\[8, 4\], -1\)"):
        mla.run(t.q_nope, t.q_pe, t.kv[0])  # type: ignore[arg-type]


def test_run_refuses_a_page_id_past_the_cache() -> None:
    t = make(PROBLEM)
    mla = batch_mla(PROBLEM)
    mla.plan(t.qo_indptr, PagedKV(t.table.indptr, ints(0, 1, 4), t.table.last_page_len))
    with pytest.raises(InvalidArgument, match="indices names page 4, but ckv_cache has 4 pages"):
        mla.run(t.q_nope, t.q_pe, t.kv)
    mla.plan(t.qo_indptr, PagedKV(t.table.indptr, ints(0, 1, 3), t.table.last_page_len))
    mla.run(t.q_nope, t.q_pe, t.kv)
    mla.plan(t.qo_indptr, PagedKV(t.table.indptr, ints(9, 1, 3), t.table.last_page_len))
    with pytest.raises(InvalidArgument, match="indices names page 9"):  # each plan is checked anew
        mla.run(t.q_nope, t.q_pe, t.kv)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        pytest.param((2.0, 3.0), r"scales is a tuple, needs MLAScales\(ckv=", id="a tuple"),
        pytest.param(MLAScales(ckv="2"), r"scales.ckv is a str, needs a number", id="text"),
        pytest.param(
            MLAScales(kpe=torch.ones(2)),
            r"scales.kpe has shape \[2\], needs one element$",
            id="per head",
        ),
        pytest.param(
            MLAScales(ckv=torch.ones(1).half()), r"scales.ckv has dtype float16", id="float16"
        ),
        pytest.param(
            MLAScales(ckv=torch.ones(1, device="meta")),
            r"scales.ckv is on meta, but q_nope is on cpu",
            id="device",
        ),
    ],
)
def test_run_refuses_scales(scales: Any, message: str) -> None:
    t = make(PROBLEM)
    mla = batch_mla(PROBLEM)
    mla.plan(t.qo_indptr, t.table)
    with pytest.raises(InvalidArgument, match=message):
        mla.run(t.q_nope, t.q_pe, t.kv, scales=scales)


def test_not_planned() -> None:
    t = make(PROBLEM)
    with pytest.raises(NotPlanned, match=r"call plan\(qo_indptr, kv_metadata\) first"):
        batch_mla(PROBLEM).run(t.q_nope, t.q_pe, t.kv)
    with pytest.raises(NotPlanned, match=r"explain\(\) before plan\(\)"):
        batch_mla(PROBLEM).explain()


@pytest.mark.parametrize("name", ["scales.ckv", "scales.kpe", "out"])
def test_no_gradient_leaks_through_scales_or_output(name: str) -> None:
    mla = BatchMLA(4, "float32", head_dim=(8, 4), page_size=5, scale=0.3, device="cpu")
    index = torch.tensor([0, 1], dtype=torch.int32)
    mla.plan(index, PagedKV(index, index[:1], index[1:]))
    caches = torch.randn(1, 5, 8), torch.randn(1, 5, 4)
    scale = torch.ones(1, requires_grad=True)
    given: dict[str, Any] = {"out": torch.zeros(1, 4, 8, requires_grad=True)}
    if name != "out":
        given = {"scales": MLAScales(**{name.partition(".")[2]: scale})}
    with pytest.raises(InvalidArgument, match=rf"forward only and {name} requires grad"):
        mla.run(torch.randn(1, 4, 8), torch.randn(1, 4, 4), caches, **given)
