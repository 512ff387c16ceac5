"""What a caller can get wrong, and the sentence that says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    BlockSparse,
    BlockSparseKV,
    DTypes,
    GraphLimits,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Rope,
    ScalarParam,
    Scales,
    TensorParam,
    VariableBlockKV,
    VariableBlocks,
    Variant,
)
from attnhub.errors import InvalidArgument, NotPlanned

NAN = float("nan")


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged(**changes: Any) -> BatchAttention:
    values: dict[str, Any] = {"device": "cpu", "kv": Paged(page_size=4), **changes}
    return BatchAttention(4, 2, 8, values.pop("dtype", torch.float32), values.pop("kv"), **values)


def table(**changes: torch.Tensor) -> PagedKV:
    """Two requests of 6 and 3 keys in pages of 4."""
    values = {"indptr": i32(0, 2, 3), "indices": i32(2, 0, 1), "last_page_len": i32(2, 3)}
    return PagedKV(**{**values, **changes})


QO = i32(0, 2, 3)


def planned(**changes: Any) -> BatchAttention:
    attn = paged(**changes)
    attn.plan(QO, table())
    return attn


Q = torch.randn(3, 4, 8)
CACHE = torch.randn(4, 2, 4, 2, 8)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_kv_heads": 3}, "num_qo_heads=4 is no multiple of num_kv_heads=3"),
        ({"num_qo_heads": 0}, "num_qo_heads=0: needs an integer >= 1"),
        ({"head_dim": 0}, "head_dim_qk=0: needs an integer >= 1"),
        ({"head_dim": (8, 8, 8)}, r"give one integer, or \(qk, vo\)"),
        ({"dtype": torch.int32}, "q dtype 'int32' is not supported"),
        ({"dtype": "float8_e4m3fn"}, "out dtype 'float8_e4m3fn' is not supported"),
        ({"kv": "paged"}, r"kv='paged': use Paged\(page_size\)"),
    ],
)
def test_constructor(kwargs: dict[str, Any], message: str) -> None:
    values = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "dtype": torch.float32}
    with pytest.raises(InvalidArgument, match=message):
        BatchAttention(**{**values, **kwargs})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Paged(page_size=0), "page_size=0: needs an integer >= 1"),
        (lambda: Paged(page_size=16, layout="NDH"), "layout='NDH': use 'NHD'"),
        (lambda: BlockSparse(0, 4), "r=0: needs an integer >= 1"),
        (lambda: GraphLimits(max_batch=0, max_qo_tokens=1), "max_batch=0: needs"),
    ],
)
def test_layouts(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    ("qo_indptr", "changes", "message"),
    [
        # int64 was read as int32 from request 2 on in other libraries: refused here
        (QO.long(), {}, r"qo_indptr has dtype int64, needs int32; use qo_indptr.to\(torch.int32\)"),
        (QO, {"indptr": i32(0, 2, 3).long()}, "indptr has dtype int64, needs int32"),
        (QO, {"indices": i32(2, 0, 1).long()}, "indices has dtype int64, needs int32"),
        (QO, {"last_page_len": i32(2, 3).long()}, "last_page_len has dtype int64"),
        (QO, {"last_page_len": i32(2, 3).float()}, "last_page_len has dtype float32"),
        (i32(), {}, "qo_indptr is empty"),
        (i32(1, 2, 3), {}, r"qo_indptr\[0\] is 1, needs 0"),
        (i32(0, 2, 1), {}, r"qo_indptr decreases at 2 \(2 to 1\)"),
        (i32(0, -2, 1), {}, r"qo_indptr decreases at 1 \(0 to -2\)"),
        (QO, {"indptr": i32(0, 3, 2)}, r"indptr decreases at 2"),
        (QO, {"indptr": i32(0, 3)}, r"indptr has shape \[2\], needs \[3\]"),
        (QO, {"indptr": i32(0, 2, 9)}, "indptr ends at 9 but indices has 3 page ids"),
        (QO, {"indices": i32(2, -1, 1)}, r"indices\[1\] is -1, needs >= 0"),
        (QO, {"last_page_len": i32(0, 3)}, r"last_page_len\[0\] is 0, needs 1 to page_size=4"),
        (QO, {"last_page_len": i32(2, 5)}, r"last_page_len\[1\] is 5, needs 1 to page_size=4"),
        (QO, {"last_page_len": i32(2)}, r"last_page_len has shape \[1\], needs \[2\]"),
        (QO.repeat(2)[::2], {}, "qo_indptr is not contiguous"),
    ],
)
def test_plan_metadata(qo_indptr: torch.Tensor, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        paged().plan(qo_indptr, table(**changes))


def test_plan_takes_the_metadata_of_its_layout_only() -> None:
    with pytest.raises(InvalidArgument, match=r"is a RaggedKV, but kv=Paged.* needs PagedKV"):
        paged().plan(QO, RaggedKV(i32(0, 6, 9)))


def test_plan_needs_to_know_the_device() -> None:
    with pytest.raises(InvalidArgument, match="no device: give BatchAttention"):
        paged(device=None).plan(QO, table())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mask": torch.ones(14, dtype=torch.bool)}, "mask has 14 elements, needs 15 bools"),
        ({"mask": torch.ones(4, dtype=torch.uint8)}, "mask has 4 elements, needs 3 packed bytes"),
        ({"mask": torch.ones(15)}, "mask has dtype float32, needs bool or uint8"),
        (
            {"mask": [torch.ones(2, 6, dtype=torch.bool)]},
            "lists 1 tensors, needs one for each of 2",
        ),
        (
            {"mask": [torch.ones(2, 5, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)]},
            r"mask\[0\] has shape \[2, 5\], needs \[2, 6\]",
        ),
        ({"q_offset": i32(0, 0)}, "this variant has no rope"),
        ({"max_qo_len": 1}, "max_qo_len=1 but the longest request has 2"),
        ({"max_kv_len": 5}, "max_kv_len=5 but the longest request has 6"),
    ],
)
def test_plan_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        paged().plan(QO, table(), **kwargs)


def test_offsets_are_checked() -> None:
    attn = paged(variant=Variant(rope=Rope()))
    with pytest.raises(InvalidArgument, match=r"k_offset has shape \[3\], needs \[2\]"):
        attn.plan(QO, table(), k_offset=i32(0, 0, 0))
    with pytest.raises(InvalidArgument, match="q_offset has dtype int64, needs int32"):
        attn.plan(QO, table(), q_offset=i32(0, 0).long())


def test_run_before_plan() -> None:
    with pytest.raises(NotPlanned, match=r"call plan\(qo_indptr, kv_metadata\) first"):
        paged().run(Q, CACHE)


@pytest.mark.parametrize(
    ("q", "kv", "message"),
    [
        (torch.randn(5, 4, 8), CACHE, "q has 5 rows, but the plan has 3 query tokens"),
        (torch.randn(3, 2, 8), CACHE, r"q has shape \[3, 2, 8\], needs \[tokens, 4, 8\]"),
        (torch.randn(3, 32), CACHE, "q has shape"),
        (Q.double(), CACHE, "q has dtype float64, needs float32"),
        (torch.randn(3, 4, 16)[..., ::2], CACHE, "q has stride 2 in its last dimension, needs 1"),
        (Q, CACHE[:2], "indices names page 2, but k has 2 pages"),
        (Q, CACHE.half(), "k has dtype float16, needs float32"),
        (
            Q,
            torch.randn(4, 2, 16, 2, 8),
            r"kv has shape \[4, 2, 16, 2, 8\], needs \[pages, 2, 4, 2, 8\]",
        ),
        (Q, torch.randn(4, 2, 4, 3, 8), r"kv has shape \[4, 2, 4, 3, 8\], needs .* 2 KV heads$"),
        (
            Q,
            torch.randn(4, 2, 2, 4, 8),
            r'needs \[pages, 2, 4, 2, 8\].*this is the HND order: construct with Paged\(4, "HND"\)',
        ),
        (Q, (torch.randn(4, 2, 4, 8),) * 2, r"k has shape .*this is the HND order"),
        (Q, CACHE[:, 0], r"kv has shape \[4, 4, 2, 8\], needs \[pages, 2, page_size"),
        (Q, (CACHE[:, 0],), "needs one cache tensor or a tuple"),
        (Q, (CACHE[:, 0], CACHE[:3, 1]), r"they must match"),
        (Q, CACHE[..., :4], r"kv has shape \[4, 2, 4, 2, 4\], needs"),
        (torch.randn(3, 4, 8, device="meta"), CACHE, "q is on meta, but this attention is on cpu"),
        (Q, torch.randn(4, 2, 4, 2, 8, device="meta"), "k is on meta"),
        (Q.clone().requires_grad_(), CACHE, "forward only"),
    ],
)
def test_run_tensors(q: torch.Tensor, kv: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        planned().run(q, kv)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"out": torch.empty(3, 4, 4)}, r"out has shape \[3, 4, 4\], needs \[3, 4, 8\]"),
        ({"out": torch.empty(3, 4, 8).half()}, "out has dtype float16, needs float32"),
        (
            {"scales": Scales(k=torch.ones(3))},
            r"scales.k has shape \[3\], needs one element or \[2\]",
        ),
        (
            {"scales": Scales(q=torch.ones(2))},
            r"scales.q has shape \[2\], needs one element or \[4\]",
        ),
        ({"scales": Scales(v=torch.ones(2).double())}, "scales.v has dtype float64, needs float32"),
        (
            {"scales": Scales(k=torch.ones(2, device="meta"))},
            "scales.k is on meta, but q is on cpu",
        ),
        ({"scales": Scales(k="1")}, "scales.k is a str, needs a number"),
        ({"params": {"bias": Q}}, "this variant takes exactly: none"),
    ],
)
def test_run_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        planned().run(Q, CACHE, **kwargs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "this variant takes exactly: "),
        ({"table": torch.ones(3), "gain": 1.0, "x": 1}, "this variant takes exactly"),
        ({"table": torch.ones(3, 3), "gain": 1.0}, "has 2 dimensions, needs 1"),
        ({"table": torch.ones(3).double(), "gain": 1.0}, "has dtype float64, needs float32"),
        ({"table": 3.0, "gain": 1.0}, "is a float, needs a float32 tensor"),
        ({"table": torch.ones(3), "gain": torch.ones(1)}, "has 1 dimensions, needs 0"),
        ({"table": torch.ones(3), "gain": torch.ones(()).double()}, "float64, needs float32"),
        ({"table": torch.ones(3), "gain": "2"}, "is a str, needs a number or a 0-d"),
        ({"table": torch.ones(3), "gain": True}, "is a bool, needs a number"),
    ],
)
def test_run_time_parameters(params: dict[str, Any], message: str) -> None:
    values, gain = TensorParam("table", 1), ScalarParam("gain")
    attn = planned(variant=Variant(score_mod=lambda s, b, h, q, k: s + gain * values[h]))
    with pytest.raises(InvalidArgument, match=message):
        attn.run(Q, CACHE, params=params)


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
def test_per_head_parameters_have_one_element_a_head(name: str) -> None:
    variant = Variant(alibi=name == "alibi_slopes", sinks=name == "sinks")
    with pytest.raises(InvalidArgument, match=rf"{name}'\] has 3 elements, needs \[4\]"):
        planned(variant=variant).run(Q, CACHE, params={name: torch.ones(3)})


def test_lse_without_a_softmax_does_not_exist() -> None:
    with pytest.raises(InvalidArgument, match="there is no denominator"):
        planned(variant=Variant(softmax=False)).run(Q, CACHE, return_lse=True)


def test_ragged_tensors_must_hold_every_request() -> None:
    attn = paged(kv=Ragged())
    attn.plan(QO, RaggedKV(i32(0, 6, 9)))
    k = torch.randn(8, 2, 8)
    with pytest.raises(InvalidArgument, match="k has 8 rows, but the plan needs 9"):
        attn.run(Q, (k, k))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (BlockSparseKV(i32(0, 6, 9), i32(0, 1), i32(0)), "has 1 block rows, needs 2"),
        (BlockSparseKV(i32(0, 6, 9), i32(0, 1, 2), i32(0)), "block_indptr ends at 2"),
        (
            BlockSparseKV(i32(0, 6, 9), i32(0, 1, 2), i32(0, 1)),
            r"block_indices\[1\] is 1, but its request has 1 key blocks",
        ),
        (
            BlockSparseKV(i32(0, 6, 9), i32(0, 1, 2), i32(0, 0), torch.ones(2, 2, 2)),
            "block_mask has dtype float32, needs bool",
        ),
    ],
)
def test_block_sparse_metadata(metadata: BlockSparseKV, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        paged(kv=BlockSparse(2, 4)).plan(QO, metadata)


@pytest.mark.parametrize(
    ("rows", "cols", "message"),
    [
        ([[2, 1], [2, 2]], [[3, 2], [4, 1]], r"row_sizes sums to \[3, 4\] over the heads"),
        ([[2, 2], [2, 2]], [[3, 2], [4, 1]], "row_sizes sums to 4, but the request has 3 rows"),
        ([[2, 1], [1, 2]], [[3, -2], [0, 1]], "col_sizes has negative sizes"),
    ],
)
def test_variable_blocks(rows: list[Any], cols: list[Any], message: str) -> None:
    sizes = [torch.tensor(x, dtype=torch.int32) for x in (rows, cols)]
    blocks = torch.ones(2, 2, 2, dtype=torch.bool)
    with pytest.raises(InvalidArgument, match=message):
        paged(kv=VariableBlocks()).plan(i32(0, 3), VariableBlockKV(*sizes, blocks))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"k": torch.randn(7, 3, 8)}, "num_qo_heads=4 is no multiple of num_kv_heads=3"),
        (
            {"k": torch.randn(7, 2, 4)},
            r"k has shape \[7, 2, 4\], needs \[kv_len, kv_heads, 8\]",
        ),
        ({"v": torch.randn(6, 2, 8)}, "v has shape"),
        ({"q": torch.randn(2, 8)}, "dimensions, needs"),
        ({"v": torch.randn(7, 2, 8).half()}, "v has dtype float16, needs float32"),
        ({"causal": True, "variant": Variant()}, "causal=True and variant=... are both given"),
        ({"mask": torch.ones(5, 6, dtype=torch.bool)}, r"mask has shape \[5, 6\], needs \[5, 7\]"),
        ({"mask": torch.ones(5, 7)}, "mask has dtype float32, needs bool"),
        ({"out": torch.empty(5, 4, 4)}, "out has shape"),
        ({"q": torch.randn(5, 4, 8).to(torch.float8_e4m3fn)}, "q is FP8: give out="),
        ({"return_lse": True, "variant": Variant(softmax=False)}, "there is no denominator"),
    ],
)
def test_dense(kwargs: dict[str, Any], message: str) -> None:
    values = {"q": torch.randn(5, 4, 8), "k": torch.randn(7, 2, 8), "v": torch.randn(7, 2, 8)}
    values.update(kwargs)
    with pytest.raises(InvalidArgument, match=message):
        attnhub.attention(values.pop("q"), values.pop("k"), values.pop("v"), **values)


def test_a_good_call_does_not_excuse_a_bad_one_of_the_same_shapes() -> None:
    """Facts of calls that passed are remembered; every fact that was checked must be among them."""
    attn = planned()
    attn.run(Q, CACHE)
    with pytest.raises(InvalidArgument, match="out has dtype float16"):
        attn.run(Q, CACHE, out=torch.empty(3, 4, 8).half())
    with pytest.raises(InvalidArgument, match="forward only"):
        attn.run(Q.clone().requires_grad_(), CACHE)
    with pytest.raises(InvalidArgument, match="v is on meta"):
        attn.run(Q, (CACHE[:, 0], CACHE[:, 1].to("meta")))
    attnhub.attention(Q, Q, Q)
    with pytest.raises(InvalidArgument, match="forward only"):
        attnhub.attention(Q, Q.clone().requires_grad_(), Q)


def test_dtypes_are_never_inferred_or_cast() -> None:
    attn = planned(dtype=DTypes("bfloat16", "bfloat16", "float32"))
    assert attn.run(Q.bfloat16(), CACHE.bfloat16()).dtype == torch.float32
    with pytest.raises(InvalidArgument, match="q has dtype float32, needs bfloat16"):
        attn.run(Q, CACHE.bfloat16())


SINKS = Variant(sinks=True)
SCALE = torch.ones(1, requires_grad=True)


def _needs_grad(*shape: int) -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(shape))


@pytest.mark.parametrize(
    ("variant", "given", "message"),
    [
        pytest.param(
            SINKS, {"params": {"sinks": _needs_grad(4)}}, r"params\['sinks'\]", id="sinks"
        ),
        pytest.param(Variant(), {"scales": Scales(q=SCALE)}, r"scales\.q", id="one scale"),
        pytest.param(Variant(), {"scales": Scales(v=_needs_grad(2))}, r"scales\.v", id="per head"),
        pytest.param(Variant(), {"out": _needs_grad(3, 4, 8)}, "out", id="output"),
    ],
)
def test_no_gradient_leaks_through_what_is_not_q_k_or_v(
    variant: Variant, given: dict[str, Any], message: str
) -> None:
    attn = BatchAttention(4, 2, 8, "float32", device="cpu", variant=variant)
    attn.plan(torch.tensor([0, 3], dtype=torch.int32), RaggedKV(torch.tensor([0, 3]).int()))
    kv = torch.randn(3, 2, 8)
    refused = pytest.raises(InvalidArgument, match=rf"forward only and {message} requires grad")
    with refused:
        attn.run(Q, (kv, kv), **given)
    with refused:
        attnhub.attention(Q, kv, kv, variant=variant, **given)
    with torch.no_grad():
        assert not attn.run(Q, (kv, kv), **given).grad_fn
        assert not attnhub.attention(Q, kv, kv, variant=variant, **given).grad_fn


def test_no_gradient_leaks_through_parameters_of_the_plan() -> None:
    attn = BatchAttention(4, 2, 8, "float32", device="cpu", variant=SINKS)
    indptr, kv = torch.tensor([0, 3], dtype=torch.int32), torch.randn(3, 2, 8)
    params = {"sinks": _needs_grad(4)}
    with pytest.raises(InvalidArgument, match=r"forward only and params\['sinks'\]"):
        attn.plan(indptr, RaggedKV(indptr), params=params)
    with torch.no_grad():
        attn.plan(indptr, RaggedKV(indptr), params=params)
    with pytest.raises(InvalidArgument, match=r"forward only and params\['sinks'\]"):
        attn.run(Q, (kv, kv))
