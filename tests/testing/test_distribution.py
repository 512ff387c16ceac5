"""Draws are judged by a bound that sound ones keep and biased ones do not."""

from __future__ import annotations

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing.compare import Mismatch
from attnhub.testing.distribution import assert_distributed, distance_allowed
from attnhub.testing.generators import seeded

PROBS = torch.tensor([0.4, 0.0, 0.3, 0.2, 0.1], dtype=torch.float64)


def drawn(probs: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    return torch.multinomial(probs, count, replacement=True, generator=seeded(seed))


def test_the_bound_is_the_stated_one() -> None:
    # 17 outcomes alike: 17 * sqrt(16) / 17 / 2 = 2, and sqrt(ln(1e9) / 2) = 3.219
    flat = torch.full((17,), 1 / 17, dtype=torch.float64)
    assert distance_allowed(flat, 20_000) == pytest.approx((2 + 3.2190) / 141.4214, rel=1e-4)


@pytest.mark.parametrize("count", [1, 20, 1000, 20_000])  # 1: the bound passes 1, which is no bound
def test_sound_draws_pass(count: int) -> None:
    for seed in range(100):
        assert_distributed(drawn(PROBS, count, seed), PROBS)


def test_no_draws_pass() -> None:
    assert_distributed(torch.empty(0, dtype=torch.int32), PROBS)


def test_rare_outcomes_are_counted_together() -> None:
    many = torch.full((50_000,), 0.5 / 50_000, dtype=torch.float64)
    probs = torch.cat([torch.tensor([0.5]), many])
    assert_distributed(drawn(probs, 2000), probs)  # of each, 0.02 are expected
    with pytest.raises(Mismatch, match=r"outcome 0: drawn 0\.6"):
        assert_distributed(torch.cat([drawn(probs, 2000), torch.zeros(600).long()]), probs)


@pytest.mark.parametrize("moved", [0.05, -0.05])
def test_a_bias_of_a_twentieth_is_seen(moved: float) -> None:
    biased = PROBS + torch.tensor([moved, 0.0, -moved, 0.0, 0.0])
    with pytest.raises(
        Mismatch, match=r"tokens: 20000 draws lie 0\.0[45].* \(allowed 0\.0286.*1e-09"
    ):
        assert_distributed(drawn(biased, 20_000), PROBS, name="tokens")


@pytest.mark.parametrize("outcome", [1, -1, 5], ids=["probability 0", "refused", "past the end"])
def test_one_impossible_draw_is_too_many(outcome: int) -> None:
    draws = drawn(PROBS, 20_000)
    draws[77] = outcome
    with pytest.raises(Mismatch, match=rf"1 \({outcome}\) of 20000 draws are impossible"):
        assert_distributed(draws, PROBS)


@pytest.mark.parametrize(
    ("draws", "probs"),
    [
        (torch.zeros(4), PROBS),
        (torch.zeros(2, 2, dtype=torch.int32), PROBS),
        (torch.zeros(4, dtype=torch.int32), 2 * PROBS),
        (torch.zeros(4, dtype=torch.int32), torch.tensor([1.5, -0.5])),
    ],
    ids=["real draws", "a matrix", "a sum of 2", "a negative"],
)
def test_other_forms_are_refused(draws: torch.Tensor, probs: torch.Tensor) -> None:
    with pytest.raises(InvalidArgument, match="needs"):
        assert_distributed(draws, probs)
