"""The grouped GEMM against products written out in Python floats."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnhub.gemm import reference
from attnhub.testing.compare import assert_close
from attnhub.testing.tolerance import tolerance


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def by_hand(
    x: torch.Tensor, weights: torch.Tensor, lengths: list[int], chosen: list[int]
) -> torch.Tensor:
    """``weights`` is [num_weights, k, n]; one dot product per element."""
    owner = [w for w, length in zip(chosen, lengths, strict=True) for _ in range(length)]
    rows, columns = x.tolist(), weights.mT.tolist()
    out = [
        [math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in columns[w]]
        for row, w in zip(rows, owner, strict=True)
    ]
    return torch.tensor(out, dtype=torch.float64).reshape(x.shape[0], weights.shape[2])


def indptr_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([0, 1, 0, 37], id="empty-first-and-middle"),
        pytest.param([5, 0], id="empty-last"),
        pytest.param([0, 0], id="all-empty"),
        pytest.param([], id="no-segment"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["kn", "nk"])
def test_is_the_sum_of_products(lengths: list[int], dtype: torch.dtype, transposed: bool) -> None:
    k, n = 11, 7
    x = normal(sum(lengths), k, dtype=dtype)
    weights = normal(max(len(lengths), 1), k, n, dtype=dtype, seed=1)
    given_weights = weights.mT.contiguous() if transposed else weights
    y = reference.segment_gemm(x, given_weights, indptr_of(lengths), transposed=transposed)
    assert y.dtype == dtype
    expected = by_hand(x, weights, lengths, list(range(len(lengths))))
    assert_close(y, expected, tolerance=tolerance(dtype).scaled(math.sqrt(k)))


@given(
    segments=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=6),
    k=st.integers(0, 5),
    n=st.integers(0, 5),
)
def test_weight_indices_choose_the_matrix(segments: list[tuple[int, int]], k: int, n: int) -> None:
    lengths, chosen = [s[0] for s in segments], [s[1] for s in segments]
    x, weights = normal(sum(lengths), k, dtype=torch.float64), normal(3, k, n, dtype=torch.float64)
    index = torch.tensor(chosen, dtype=torch.int64)
    y = reference.segment_gemm(x, weights, indptr_of(lengths), index)
    assert_close(y, by_hand(x, weights, lengths, chosen))


def test_sums_are_float32() -> None:
    # In bfloat16 the running sum would stop at 256, where adding 1 no longer changes it.
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    y = reference.segment_gemm(x, torch.ones(1, 4096, 1).bfloat16(), indptr_of([1]))
    assert y.item() == 4096.0


def test_one_bad_segment_does_not_reach_its_neighbours() -> None:
    x = normal(5, 3, dtype=torch.float32)
    x[2] = torch.nan
    weights = normal(3, 3, 4, dtype=torch.float32, seed=1)
    y = reference.segment_gemm(x, weights, indptr_of([2, 1, 2]))
    assert y.isnan().all(dim=1).tolist() == [False, False, True, False, False]
    assert y[[0, 1, 3, 4]].isfinite().all()


def test_strided_operands() -> None:
    x = normal(10, 3, 6, dtype=torch.float32)[::2, 1]
    weights = normal(4, 5, 12, dtype=torch.float32, seed=1)[::2, :, ::2].mT
    lengths = [2, 3]
    y = reference.segment_gemm(x, weights, indptr_of(lengths))
    assert_close(y, by_hand(x, weights, lengths, [0, 1]), tolerance=tolerance(x.dtype).scaled(3))


def test_rows_of_no_segment_are_zero() -> None:
    x = torch.full((4, 2), torch.nan)
    x[:1] = 1.0
    y = reference.segment_gemm(x, torch.ones(1, 2, 3), indptr_of([1]))
    assert y.tolist() == [[2.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3]
