"""The public grouped product: values, checks, and how it behaves under torch.compile."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import attnhub
from attnhub.errors import InvalidArgument
from attnhub.gemm import api, workloads
from attnhub.gemm.problem import SegmentGemmProblem
from attnhub.testing.compare import assert_close
from attnhub.testing.tolerance import tolerance

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
K, N = 12, 7


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def indptr_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def expected(
    x: torch.Tensor, weights: torch.Tensor, lengths: list[int], chosen: list[int]
) -> torch.Tensor:
    """Row by row in float64; weights [num_weights, k, n]."""
    owner = [w for w, length in zip(chosen, lengths, strict=True) for _ in range(length)]
    y = torch.zeros(x.shape[0], weights.shape[2], dtype=torch.float64)
    for row, w in enumerate(owner):
        y[row] = x[row].double() @ weights[w].double()
    return y


def assert_product(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    k_scale = math.sqrt(K)  # the table is for sums of size 1
    assert_close(actual, wanted, tolerance=tolerance(actual.dtype).scaled(k_scale))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["kn", "nk"])
@pytest.mark.parametrize("indexed", [False, True], ids=["in-order", "indexed"])
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([3, 1, 4], id="plain"),
        pytest.param([0, 5, 0, 0, 2, 0], id="empty-segments"),
        pytest.param([0, 0], id="only-empty-segments"),
        pytest.param([], id="no-segment"),
    ],
)
def test_values(lengths: list[int], indexed: bool, transposed: bool, dtype: torch.dtype) -> None:
    x, weights = normal(sum(lengths), K, dtype=dtype), normal(6, K, N, dtype=dtype, seed=1)
    chosen = [5, 0, 5, 1, 2, 0][: len(lengths)] if indexed else list(range(len(lengths)))
    given = weights.mT.contiguous() if transposed else weights
    y = attnhub.gemm.segment_gemm(
        x,
        given,
        indptr_of(lengths),
        weight_indices=int32(*chosen) if indexed else None,
        transposed=transposed,
    )
    assert y.dtype == dtype
    assert_product(y, expected(x, weights, lengths, chosen))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_poisoned_out_does_not_leak(dtype: torch.dtype) -> None:
    x, weights = normal(6, K, dtype=dtype), normal(3, K, N, dtype=dtype, seed=1)
    out = torch.full((6, N), torch.nan, dtype=dtype)
    assert api.segment_gemm(x, weights, indptr_of([1, 0, 3]), out=out) is out
    assert_product(out, expected(x, weights, [1, 0, 3], [0, 1, 2]))
    assert not out[4:].any()


def test_rows_of_no_segment_are_zero_even_if_they_hold_nan() -> None:
    x = normal(5, K)
    x[3:] = torch.nan
    y = api.segment_gemm(x, normal(1, K, N), indptr_of([3]))
    assert bool(y[:3].isfinite().all())
    assert not y[3:].any()


def test_strided_operands_and_out() -> None:
    x, weights = normal(5, 3, K + 2)[:, 1, 1:-1], normal(2, 2, K, N + 1, seed=1)[:, 1, :, :-1]
    whole = torch.full((5, N + 4), torch.nan)
    api.segment_gemm(x, weights, indptr_of([2, 3]), out=whole[:, 2:-2])
    assert_product(whole[:, 2:-2], expected(x, weights, [2, 3], [0, 1]))
    assert bool(whole[:, [0, 1, -2, -1]].isnan().all())


def test_a_single_column() -> None:
    # One column has no stride to speak of: [rows, 1] is contiguous either way.
    x, weights = normal(4, K), normal(2, 1, K).mT
    y = api.segment_gemm(x, weights, indptr_of([1, 3]))
    assert_product(y, expected(x, weights, [1, 3], [0, 1]))


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param(
            {"x": normal(4, K).double()}, "x has dtype float64, needs float16 or", id="float64"
        ),
        pytest.param(
            {"x": normal(4, 1, K)}, r"x has shape \[4, 1, 12\], needs \[rows, k\]", id="3-D"
        ),
        pytest.param({"x": normal(4, 0)}, "with k >= 1", id="k-0"),
        pytest.param({"x": normal(K, 4).T}, r"x has stride 4.*x\.contiguous\(\)", id="x-stride"),
        pytest.param({"x": normal(4, K).requires_grad_()}, "forward only", id="needs-grad"),
        pytest.param({"weights": normal(2, N, K)}, r"needs \[num_weights, 12, n\]", id="axes"),
        pytest.param({"transposed": True}, r"needs \[num_weights, n, 12\]", id="transposed-axes"),
        pytest.param({"weights": normal(K, N)}, r"needs \[num_weights, 12, n\]", id="weights-2-D"),
        pytest.param({"weights": normal(2, K, 0)}, "needs n >= 1", id="n-0"),
        pytest.param(
            {"weights": normal(2, N, K).mT},
            r"weights has stride 12 .* give weights\.mT with transposed=True, or weights\.contig",
            id="weights-stride",
        ),
        pytest.param(
            {"weights": normal(2, K, N).half()},
            "weights has dtype float16, needs float32",
            id="weights-dtype",
        ),
        pytest.param(
            {"weights": torch.empty(2, K, N, device="meta")},
            "weights is on meta, but x is on cpu",
            id="weights-device",
        ),
        pytest.param(
            {"seg_indptr": indptr_of([1, 3]).long()}, "seg_indptr has dtype int64", id="int64"
        ),
        pytest.param({"seg_indptr": int32()}, "seg_indptr is empty", id="empty-indptr"),
        pytest.param({"seg_indptr": int32(0, 3, 2)}, "seg_indptr decreases at 2", id="decreasing"),
        pytest.param({"seg_indptr": int32(0, 1, 5)}, "ends at 5, but x has 4 rows", id="too-long"),
        pytest.param(
            {"seg_indptr": int32(0, 1, 2, 4)},
            "3 segments but weights has 2 matrices; give one for each",
            id="too-few-matrices",
        ),
        pytest.param(
            {"seg_indptr": indptr_of([1, 3]).to("meta")},
            "seg_indptr is on meta, but x is on cpu",
            id="index-device",
        ),
        pytest.param({"weight_indices": int32(0)}, r"weight_indices .* needs \[2\]", id="indices"),
        pytest.param(
            {"weight_indices": int32(0, 2)},
            r"weight_indices\[1\] is 2, needs 0 to 1 \(matrices\)",
            id="index-past-the-weights",
        ),
        pytest.param({"weight_indices": int32(-1, 0)}, r"weight_indices\[0\] is -1", id="minus-1"),
        pytest.param({"out": normal(4, N + 1)}, r"out has shape .* needs \[4, 7\]", id="out-shape"),
        pytest.param({"out": normal(4, N).half()}, "out has dtype float16", id="out-dtype"),
        pytest.param({"out": normal(N, 4).T}, "out has stride 4", id="out-stride"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    given = {"x": normal(4, K), "weights": normal(2, K, N), "seg_indptr": indptr_of([1, 3])}
    with pytest.raises(InvalidArgument, match=message):
        api.segment_gemm(**{**given, **changed})


# --- as a torch op --------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [None, int32(1, 0)], ids=["in-order", "indexed"])
def test_is_a_well_formed_op(indices: torch.Tensor | None) -> None:
    overload = api._segment_gemm.overload
    given = normal(4, K), normal(2, K, N), indptr_of([1, 2]), indices, torch.empty(4, N), False
    torch.library.opcheck(overload, given)
    overload(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in given))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("indexed", [False, True], ids=["in-order", "indexed"])
def test_compiles_whole(indexed: bool, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(api.segment_gemm, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 6):
        x, weights = normal(rows, K), normal(2, N, K, seed=1)
        named = {"weight_indices": int32(1, 1) if indexed else None, "transposed": True}
        wanted = api.segment_gemm(x, weights, indptr_of([1, 2]), **named)
        assert torch.equal(compiled(x, weights, indptr_of([1, 2]), **named), wanted)
        out = torch.full((rows, N), torch.nan)
        assert compiled(x, weights, indptr_of([1, 2]), out=out, **named) is out
        assert torch.equal(out, wanted)


# --- workloads and problems -----------------------------------------------------------------------


def test_workloads_run() -> None:
    for workload in workloads.segment_gemm:
        if "small" in workload.tags:
            y = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()
            assert y.shape == (workload.facts["rows"], workload.facts["n"])
            assert bool(y.isfinite().all())


@pytest.mark.usefixtures("isolated_registry")
def test_problem_tells_work() -> None:
    facts = {"dtype": "bfloat16", "k": 64, "n": 32}
    work = SegmentGemmProblem.of("h200", **facts, batch=4, tokens=16).work()
    assert work.flops == 2 * 16 * 64 * 32
    assert work.bytes == 2 * (16 * (64 + 32) + 4 * 64 * 32)
    decision = attnhub.explain("gemm.segment_gemm", device="h200", **facts)
    assert decision.chosen.name == "reference"
    assert (
        "batch unknown, assumed 8; tokens unknown, assumed 1024" in decision.chosen.estimate.detail
    )
