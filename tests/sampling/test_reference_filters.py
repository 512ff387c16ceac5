"""Softmax, filters, renormalisation and top-k against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from attnhub.sampling import reference

INVALID_ROWS = {
    "nan": [0.5, math.nan, 0.5],
    "inf": [0.5, math.inf, 0.5],
    "negative": [0.5, -0.1, 0.6],
    "all_zero": [0.0, 0.0, 0.0],
}


def float32(value: float) -> Fraction:
    return Fraction(torch.tensor(value, dtype=torch.float32).item())


def adversarial_rows(vocab: int) -> dict[str, torch.Tensor]:
    """Rows that have broken samplers: each `[vocab]` float32."""
    generator = torch.Generator().manual_seed(vocab)
    noise = torch.randn(vocab, generator=generator)
    half = torch.tensor(0.5)
    adjacent = torch.full((vocab,), 0.25 / vocab)
    adjacent[0], adjacent[-1] = half, torch.nextafter(half, torch.tensor(1.0))
    sparse = torch.zeros(vocab)
    sparse[::3] = 1.0
    rows = {
        "flat": torch.full((vocab,), 1 / vocab),
        "adjacent_floats": adjacent,
        "tied_blocks": torch.arange(vocab).div(4, rounding_mode="floor").float() / vocab,
        "one_hot": torch.nn.functional.one_hot(torch.tensor(vocab // 2), vocab).float(),
        "sparse_sum_not_one": sparse,
        "sum_off_by_rounding": noise.softmax(-1) * (1 + 1e-6),
        "huge_range": torch.logspace(-44, 0, vocab),
    }
    rows |= {f"sigma_{s}": (noise * s).softmax(-1) for s in (0.01, 1.0, 10.0, 50.0)}
    return rows


# Odd sizes, one entry, and a size over one vector register: no alignment is assumed anywhere.
ROWS = [
    pytest.param(row, id=f"{name}-{vocab}")
    for vocab in (1, 7, 111)
    for name, row in adversarial_rows(vocab).items()
    if row.sum() > 0
]


def exact_top_k(values: list[Fraction], k: int) -> list[bool]:
    return [sum(other > value for other in values) < k for value in values]


def exact_top_p(values: list[Fraction], top_p: float) -> list[bool]:
    total, share = sum(values), min(max(float32(top_p), Fraction(0)), Fraction(1))
    above = [sum(other for other in values if other > value) for value in values]
    largest = max(values)
    pairs = zip(values, above, strict=True)
    return [v > 0 and (mass < share * total or v == largest) for v, mass in pairs]


@pytest.mark.parametrize("row", ROWS)
def test_top_k_keep_is_exact(row: torch.Tensor) -> None:
    vocab, values = len(row), [Fraction(x) for x in row.tolist()]
    for k in {0, 1, 2, vocab // 2 + 1, max(vocab - 1, 1), vocab, vocab + 1, 2**31 - 1}:
        got = reference.top_k_keep(row[None], k)[0].tolist()
        assert got == exact_top_k(values, max(k, 1)), f"k={k}"


@pytest.mark.parametrize("row", ROWS)
def test_top_p_keep_is_exact(row: torch.Tensor) -> None:
    values = [Fraction(x) for x in row.tolist()]
    for top_p in (0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1 - 2**-24, 1.0):
        got = reference.top_p_keep(row[None], top_p)[0].tolist()
        assert got == exact_top_p(values, top_p), f"top_p={top_p}"


@pytest.mark.parametrize("row", ROWS)
def test_min_p_keep_is_exact(row: torch.Tensor) -> None:
    values = [Fraction(x) for x in row.tolist()]
    for min_p in (0.0, 1e-4, 0.1, 0.5, 1.0, 1.5):
        floor = min(float32(min_p), Fraction(1)) * max(values)
        expected = [v > 0 and v >= floor for v in values]
        assert reference.min_p_keep(row[None], min_p)[0].tolist() == expected, f"min_p={min_p}"


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("joint", [False, True])
def test_filter_probs_order_is_exact(row: torch.Tensor, joint: bool) -> None:
    values = [Fraction(x) for x in row.tolist()]
    k, top_p, min_p = len(row) // 2 + 1, 0.6, 0.01
    by_k = exact_top_k(values, k)
    left = [v if keep else Fraction(0) for v, keep in zip(values, by_k, strict=True)]
    by_p = exact_top_p(values if joint else left, top_p)
    floor = float32(min_p) * max(values)
    expected = [
        float(v) if a and b and v >= floor else 0.0
        for v, a, b in zip(values, by_k, by_p, strict=True)
    ]
    got = reference.filter_probs(row[None], top_k=k, top_p=top_p, min_p=min_p, joint=joint)
    assert got[0].tolist() == expected


def test_boundary_ties_are_all_kept_whatever_the_order() -> None:
    row = torch.tensor([0.4, 0.3, 0.3, 0.0])
    for order in torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]):
        expected = (row > 0)[order][None]
        assert torch.equal(reference.top_k_keep(row[order][None], 2), expected)
        assert torch.equal(reference.top_p_keep(row[order][None], 0.5), expected)


def test_adjacent_floats_at_the_boundary_are_told_apart() -> None:
    lower = torch.tensor(0.25)
    upper = torch.nextafter(lower, torch.tensor(1.0))
    row = torch.stack([lower, upper, lower, lower])[None]
    assert reference.top_k_keep(row, 1).tolist() == [[False, True, False, False]]
    assert reference.top_p_keep(row, 0.25).tolist() == [[False, True, False, False]]


def test_parameters_are_per_row_and_a_number_means_the_same_as_a_tensor() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).expand(3, 4)
    got = reference.top_k_keep(probs, torch.tensor([1, 3, 9], dtype=torch.int32))
    assert got.sum(-1).tolist() == [1, 3, 4]
    assert reference.top_p_keep(probs, torch.tensor([0.5, 0.51, 1.0])).sum(-1).tolist() == [1, 3, 3]
    assert reference.min_p_keep(probs, torch.tensor([1.0, 0.5, 0.0])).sum(-1).tolist() == [1, 3, 3]
    # 0.9 in float64 is above its float32 neighbour: read as float64 it would keep both entries.
    close = torch.tensor([[0.9, 0.1]])
    assert reference.top_p_keep(close, 0.9).tolist() == [[True, False]]
    assert reference.top_p_keep(close, torch.tensor([0.9])).tolist() == [[True, False]]


@pytest.mark.parametrize("row", INVALID_ROWS.values(), ids=INVALID_ROWS)
def test_invalid_rows_are_emptied_and_neighbours_unharmed(row: list[float]) -> None:
    good = [0.5, 0.3, 0.2]
    probs = torch.tensor([good, row, good])
    assert reference.valid_rows(probs).tolist() == [True, False, True]
    for keep in (reference.top_p_keep(probs, 0.6), reference.min_p_keep(probs, 0.5)):
        assert keep.tolist() == [[True, True, False], [False] * 3, [True, True, False]]
    filtered = reference.filter_probs(probs, top_k=2, top_p=0.9, min_p=0.1)
    expected = torch.tensor([[0.5, 0.3, 0.0], [0.0, 0.0, 0.0], [0.5, 0.3, 0.0]])
    assert torch.equal(filtered, expected)
    assert torch.equal(reference.filter_probs(probs)[1], torch.zeros(3))
    for renormed in (reference.top_k_renorm(probs, 2), reference.top_p_renorm(probs, 0.7)):
        assert renormed[1].isnan().all()
        torch.testing.assert_close(renormed[0], torch.tensor([0.625, 0.375, 0.0]))
        assert torch.equal(renormed[0], renormed[2])


@pytest.mark.parametrize("row", ROWS)
def test_renormalised_rows_sum_to_one(row: torch.Tensor) -> None:
    k = len(row) // 2 + 1
    cases = [
        (reference.top_k_renorm(row[None], k), exact_top_k([Fraction(x) for x in row.tolist()], k)),
        (
            reference.top_p_renorm(row[None], 0.9),
            exact_top_p([Fraction(x) for x in row.tolist()], 0.9),
        ),
    ]
    for got, keep in cases:
        kept = row.double() * torch.tensor(keep)
        torch.testing.assert_close(got[0], (kept / kept.sum()).float(), rtol=1e-6, atol=0)
        assert abs(got.double().sum() - 1) < 1e-6


def test_top_k_mask_logits_keeps_ties_and_passes_minus_infinity_and_nan() -> None:
    inf, nan = math.inf, math.nan
    logits = torch.tensor(
        [[1.0, 3.0, 2.0, 2.0], [1.0, -inf, -inf, -inf], [-inf] * 4, [1.0, nan, 3.0, 2.0]]
    )
    got = reference.top_k_mask_logits(logits, 2)
    expected = [[-inf, 3.0, 2.0, 2.0], [1.0, -inf, -inf, -inf], [-inf] * 4, [nan] * 4]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
    assert reference.top_k_mask_logits(logits.bfloat16(), 2).dtype == torch.bfloat16


@pytest.mark.parametrize("k", [0, 1, 3, 6, 7], ids=["none", "one", "some", "all_but_one", "all"])
def test_topk_sorts_descending_with_lowest_index_first(k: int) -> None:
    scores = torch.tensor([[2.0, 5.0, -math.inf, 5.0, 0.0, 2.0, 7.0], [1.0] * 7])
    order = [
        [index for _, index in sorted((-value, index) for index, value in enumerate(row))][:k]
        for row in scores.tolist()
    ]
    values, indices = reference.topk(scores, k)
    assert indices.dtype == torch.int32
    assert indices.tolist() == order
    assert torch.equal(values, scores.gather(-1, indices.long()))


def test_topk_refuses_more_than_the_row_holds() -> None:
    with pytest.raises(ValueError, match=r"k=4: each row holds 3 entries; give k between 0 and 3"):
        reference.topk(torch.zeros(1, 3), 4)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 50.0], ids=["flat", "plain", "peaked"])
@pytest.mark.parametrize("temperature", [1e-30, 0.3, 1.0, 40.0])
def test_softmax_equals_float64(sigma: float, temperature: float) -> None:
    logits = torch.randn(5, 111, generator=torch.Generator().manual_seed(1)) * sigma
    logits[:, ::5] = -math.inf
    heat = float(float32(temperature))
    for row, got in zip(
        logits.tolist(), reference.softmax(logits, temperature).tolist(), strict=True
    ):
        weights = [math.exp((x - max(row)) / heat) for x in row]
        expected = [weight / math.fsum(weights) for weight in weights]
        assert got == pytest.approx(expected, rel=1e-6, abs=1e-38)


def test_softmax_temperature_is_per_row_and_zero_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[1.0, 4.0, 4.0]]).expand(3, 3)
    got = reference.softmax(logits, torch.tensor([0.0, 1.0, 1e6]))
    assert got.dtype == torch.float32
    assert got[0].tolist() == [0.0, 1.0, 0.0]
    tail = math.exp(-3)
    torch.testing.assert_close(got[1], torch.tensor([tail, 1, 1]) / (2 + tail))
    torch.testing.assert_close(got[2], torch.full((3,), 1 / 3), rtol=1e-5, atol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_softmax_invalid_logits_give_nan_rows(bad: list[float], temperature: float) -> None:
    got = reference.softmax(torch.tensor([bad, [0.0, -math.inf]]), temperature)
    assert got[0].isnan().all()
    assert got[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_softmax_invalid_temperature_gives_nan_row(temperature: float) -> None:
    got = reference.softmax(torch.zeros(2, 2), torch.tensor([temperature, 1.0]))
    assert got[0].isnan().all()
    assert got[1].tolist() == [0.5, 0.5]
