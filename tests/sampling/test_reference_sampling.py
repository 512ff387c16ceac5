"""Drawing one token: which one a uniform selects, edges, invalid rows, independent requests."""

from __future__ import annotations

import math

import pytest
import torch

from attnhub.sampling import reference
from attnhub.sampling.philox import SAMPLE_STREAM, philox_uniform

LARGEST_UNIFORM = 1 - 2**-24


def oracle_token(row: list[float], uniform: float) -> int:
    """First token whose running sum exceeds uniform * sum, on Python floats."""
    mark, reached = uniform * math.fsum(row), 0.0
    for token, prob in enumerate(row):
        reached += prob
        if prob > 0 and reached > mark:
            return token
    raise AssertionError("the row holds no mass")


@pytest.mark.parametrize("vocab", [1, 7, 111, 1023])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 50.0], ids=["flat", "plain", "peaked"])
def test_inverse_transform_equals_float64_oracle(vocab: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    # The factor takes the sums away from 1: only proportions may count.
    probs = (torch.randn(200, vocab, generator=generator) * sigma).softmax(-1) * 3.7
    uniform = torch.rand(200, generator=generator)
    expected = [oracle_token(r, u) for r, u in zip(probs.tolist(), uniform.tolist(), strict=True)]
    got = reference.inverse_transform(probs, uniform)
    assert got.dtype == torch.int32
    assert got.tolist() == expected


def test_boundaries_belong_to_the_next_token() -> None:
    weights = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(4, 4)
    uniform = torch.tensor([0.0, 0.25, 0.75, 0.75 - 2**-24])
    assert reference.inverse_transform(weights, uniform).tolist() == [0, 2, 3, 2]


@pytest.mark.parametrize("sigma", [0.01, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("uniform", [0.0, LARGEST_UNIFORM], ids=["zero", "almost_one"])
def test_extreme_uniforms_stay_inside_a_large_vocabulary(sigma: float, uniform: float) -> None:
    vocab = 128256
    probs = (torch.randn(2, vocab, generator=torch.Generator().manual_seed(0)) * sigma).softmax(-1)
    probs[1, :1000] = 0.0
    probs[1, -1000:] = 0.0  # the last token that may be drawn is not the last of the row
    tokens = reference.inverse_transform(probs, torch.full((2,), uniform)).long()
    assert (tokens < vocab).all()
    assert (probs.gather(-1, tokens[:, None]) > 0).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-6, 1.0, 1e38], ids=["tiny", "small", "one", "huge"])
def test_zero_probability_is_never_drawn_at_any_scale(scale: float) -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0]]) * scale
    uniform = torch.cat([torch.linspace(0, LARGEST_UNIFORM, 999), torch.tensor([LARGEST_UNIFORM])])
    tokens = reference.inverse_transform(probs.expand(1000, 5), uniform)
    assert set(tokens.tolist()) == {1, 3}
    assert abs((tokens == 1).float().mean() - 1 / 3) < 2e-3


@pytest.mark.parametrize(
    "row",
    [
        [0.5, math.nan, 0.5],
        [0.5, math.inf, 0.5],
        [-0.1, 0.6, 0.5],
        [0.0, 0.0, 0.0],
    ],
    ids=["nan", "inf", "negative", "all_zero"],
)
def test_invalid_row_gives_minus_one_and_spares_its_neighbours(row: list[float]) -> None:
    good = [0.2, 0.3, 0.5]
    seed, offset = torch.tensor([3, 4, 5]), torch.tensor([0, 0, 9])
    alone = reference.sample_from_probs(torch.tensor([good]).expand(3, 3), seed, offset).tolist()
    got = reference.sample_from_probs(torch.tensor([good, row, good]), seed, offset).tolist()
    assert got == [alone[0], -1, alone[2]]
    filtered = reference.filter_probs(torch.tensor([good, row, good]), top_k=3, top_p=1.0)
    assert reference.sample_from_probs(filtered, seed, offset).tolist() == got


def test_sample_uses_draw_zero_of_each_request() -> None:
    probs = torch.randn(50, 33, generator=torch.Generator().manual_seed(2)).softmax(-1)
    seed, offset = torch.arange(50) + 2**40, torch.arange(50) * 7
    uniform = philox_uniform(seed, offset, 1, stream=SAMPLE_STREAM)[:, 0]
    expected = [oracle_token(r, u) for r, u in zip(probs.tolist(), uniform.tolist(), strict=True)]
    assert reference.sample_from_probs(probs, seed, offset).tolist() == expected


def test_indices_share_rows_and_requests_are_independent_of_the_batch() -> None:
    probs = torch.randn(4, 33, generator=torch.Generator().manual_seed(3)).softmax(-1)
    indices = torch.tensor([3, 0, 0, 2, 3, 1], dtype=torch.int32)
    seed, offset = torch.tensor([5, 5, 6, 5, 5, 8]), torch.tensor([0, 1, 1, 0, 0, 2])
    got = reference.sample_from_probs(probs, seed, offset, indices=indices)
    assert got[0] == got[4]  # same row, seed and offset
    alone = [
        reference.sample_from_probs(probs[row][None], seed[b : b + 1], offset[b : b + 1]).item()
        for b, row in enumerate(indices.tolist())
    ]
    assert got.tolist() == alone


def test_sample_from_logits_is_softmax_then_sample_with_temperature_per_request() -> None:
    logits = torch.randn(2, 33, generator=torch.Generator().manual_seed(4))
    logits[0, ::2] = -math.inf
    indices = torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    seed, offset = torch.arange(4), torch.arange(4)
    heat = torch.tensor([0.7, 0.0, 2.0, 0.0])
    got = reference.sample_from_logits(logits, seed, offset, temperature=heat, indices=indices)
    rows = reference.softmax(logits[indices.long()], heat)
    assert got.tolist() == reference.sample_from_probs(rows, seed, offset).tolist()
    assert got[1] == logits[1].argmax()
    assert got[3] == logits[0].argmax()


def test_sample_from_logits_invalid_rows_give_minus_one() -> None:
    logits = torch.tensor([[0.0, math.nan], [0.0, math.inf], [-math.inf] * 2, [-math.inf, 0.0]])
    seed = torch.arange(4)
    assert reference.sample_from_logits(logits, seed, seed).tolist() == [-1, -1, -1, 1]


def test_empty_batch() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert reference.sample_from_probs(torch.zeros(0, 5), none, none).shape == (0,)
