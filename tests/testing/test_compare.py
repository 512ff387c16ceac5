from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing.compare import Mismatch, Sample, assert_close, judge
from attnhub.testing.tolerance import Tolerance, tolerance

NAN, INF = math.nan, math.inf
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
EXACT = Tolerance(max_abs=0.0, rel=0.0, rms=0.0, reason="equal values")


def _expected() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 32, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_rounding_to_the_dtype_passes_its_own_row(dtype: torch.dtype) -> None:
    expected = _expected()
    facts = judge(expected.to(dtype), expected)
    assert facts.check == "equal"
    assert facts.max_abs == float((expected.to(dtype).double() - expected).abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_a_row_of_rms_error_passes_and_twice_fails(dtype: torch.dtype) -> None:
    expected = _expected()
    row = tolerance(dtype)
    size = expected.square().mean().sqrt()
    assert_close(expected + 0.5 * row.rms * size, expected, dtype=dtype)
    with pytest.raises(Mismatch) as failure:
        assert_close(expected + 2 * row.rms * size, expected, dtype=dtype)
    assert failure.value.facts.rms == pytest.approx(float(2 * row.rms * size))
    assert "RMS error" in str(failure.value)


def test_max_error_is_found_with_its_coordinates_and_values() -> None:
    expected = _expected()
    actual = expected.to(torch.bfloat16)
    expected[4, 2, 17] = 1.0
    actual[4, 2, 17] = 1.5
    with pytest.raises(Mismatch) as failure:
        assert_close(actual, expected, name="o")
    facts = failure.value.facts
    assert facts.check == "error"
    assert facts.beyond == 1
    assert facts.total == 6 * 3 * 32
    assert facts.max_abs == 0.5
    assert facts.worst == Sample(index=(4, 2, 17), actual=1.5, expected=1.0)
    assert facts.samples == (facts.worst,)
    message = str(failure.value)
    assert message.startswith("o: 1 of 576 elements beyond tolerance")
    assert "max error 0.5 at (4, 2, 17): got 1.5, expected 1" in message


def test_at_most_five_samples_are_shown_in_row_major_order() -> None:
    expected = torch.zeros(4, 4)
    actual = expected.clone()
    actual[1:, 2] = 1.0
    actual[2] = torch.tensor([2.0, 2.0, 3.0, 2.0])
    facts = judge(actual, expected)
    assert facts.beyond == 6
    assert [s.index for s in facts.samples] == [(1, 2), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert facts.worst == Sample(index=(2, 2), actual=3.0, expected=0.0)


def test_relative_error_ignores_expected_zeros() -> None:
    facts = judge(torch.tensor([1e-6, 4.000004]), torch.tensor([0.0, 4.0]))
    assert facts.check == "equal"
    assert facts.max_rel == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("got", "wanted", "check", "word"),
    [
        ([1.0, NAN], [1.0, 2.0], "nan", "NaN at 1 positions where none is expected, missing at 0"),
        ([1.0, 2.0], [1.0, NAN], "nan", "missing at 1"),
        ([NAN, 1.0], [1.0, NAN], "nan", "NaN at 1 positions where none is expected, missing at 1"),
        ([1.0, INF], [1.0, 2.0], "inf", "+inf at 1"),
        ([1.0, -INF], [1.0, INF], "inf", "+inf at 0 positions where none is expected, missing at"),
        ([1.0, 2.0], [1.0, -INF], "inf", "-inf at 0"),
        ([NAN, 2.0], [INF, 2.0], "nan", "NaN at 1"),
    ],
    ids=[
        "extra NaN",
        "missing NaN",
        "a NaN at the wrong place",
        "extra inf",
        "inf of the wrong sign",
        "missing -inf",
        "NaN for inf",
    ],
)
def test_special_values_must_be_at_the_same_places(
    got: list[float], wanted: list[float], check: str, word: str
) -> None:
    with pytest.raises(Mismatch) as failure:
        assert_close(torch.tensor(got), torch.tensor(wanted))
    assert failure.value.facts.check == check
    assert word in str(failure.value)


def test_a_single_swapped_nan_is_found_where_it_is() -> None:
    expected = torch.zeros(8, 8)
    expected[3, 4] = NAN
    actual = torch.zeros(8, 8)
    actual[4, 3] = NAN
    facts = judge(actual, expected)
    assert [s.index for s in facts.samples] == [(3, 4), (4, 3)]
    assert math.isnan(facts.samples[1].actual)
    assert facts.samples[1].expected == 0.0


def test_equal_special_values_do_not_hide_the_error_of_the_others() -> None:
    expected = torch.tensor([NAN, INF, -INF, 1.0])
    assert judge(expected.clone(), expected, tolerance=EXACT).check == "equal"
    facts = judge(torch.tensor([NAN, INF, -INF, 1.25]), expected)
    assert (facts.check, facts.max_abs, facts.rms) == ("error", 0.25, 0.25)


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(0, 4), torch.full((2,), -INF), torch.full((2,), NAN), torch.tensor(2.0)],
    ids=["empty", "all -inf", "all NaN", "no dims"],
)
def test_degenerate_tensors_equal_themselves(tensor: torch.Tensor) -> None:
    assert judge(tensor, tensor.double(), tolerance=EXACT).check == "equal"


def test_scalars_are_reported_with_empty_coordinates() -> None:
    assert judge(torch.tensor(2.0), torch.tensor(3.0)).worst == Sample(
        index=(), actual=2.0, expected=3.0
    )


def test_shape_is_judged_before_values() -> None:
    with pytest.raises(Mismatch, match=r"lse: shape \[4, 2\], expected \[2, 4\]") as failure:
        assert_close(torch.zeros(4, 2), torch.zeros(2, 4), name="lse")
    assert failure.value.facts.check == "shape"


def test_integers_must_be_equal_and_of_one_dtype() -> None:
    assert_close(torch.tensor([1, 2]), torch.tensor([1, 2]))
    facts = judge(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]]))
    assert facts.samples == (Sample(index=(1, 1), actual=4, expected=5),)
    assert judge(torch.tensor([1]), torch.tensor([1.0])).check == "dtype"
    assert judge(torch.tensor([1]), torch.tensor([1], dtype=torch.int32)).check == "dtype"


def test_a_reference_coarser_than_the_result_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least as precise"):
        assert_close(torch.zeros(2), torch.zeros(2, dtype=torch.float16))


def test_lse_is_judged_by_its_absolute_error() -> None:
    expected = torch.full((64, 8), 9.0, dtype=torch.float64)
    allowed = tolerance(torch.bfloat16, kind="lse").rms
    assert judge(expected + 0.9 * allowed, expected, dtype=torch.bfloat16, kind="lse").check == (
        "equal"
    )
    assert judge(expected + 1.1 * allowed, expected, dtype=torch.bfloat16, kind="lse").check == (
        "error"
    )


@pytest.mark.parametrize("kind", ["output", "lse"])
def test_the_table_grows_with_the_coarseness_of_the_dtype(kind: str) -> None:
    rows = [tolerance(dtype, kind=kind) for dtype in DTYPES]
    for finer, coarser in pairwise(rows):
        assert finer.max_abs <= coarser.max_abs
        assert finer.rel <= coarser.rel
        assert finer.rms <= coarser.rms
    assert all(row.reason for row in rows)


def test_a_scaled_row_follows_the_data() -> None:
    row = tolerance(torch.bfloat16).scaled(10)
    assert (row.max_abs, row.rel, row.rms) == (0.2, 1.6e-2, 6e-3)
    assert tolerance(torch.bfloat16, kind="lse").scaled(10).rms == pytest.approx(4e-2)
    with pytest.raises(InvalidArgument, match="positive"):
        row.scaled(0)


def test_unknown_rows_are_refused_with_what_there_is() -> None:
    with pytest.raises(
        InvalidArgument, match=r"torch.int8: the tolerance table has float64, .*e5m2"
    ):
        tolerance(torch.int8)
    with pytest.raises(InvalidArgument, match="'output' and 'lse'"):
        tolerance(torch.float32, kind="grad")
