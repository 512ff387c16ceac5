"""Variance of values far from 0, whether a row is held in registers or passes twice."""

from __future__ import annotations

import pytest
import torch

from attnhub.norm import layernorm
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub.testing.tolerance import Tolerance
from attnhub_triton_misc.settings import STEPS, WHOLE_ROWS


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(1000, id="held-in-registers"),
        pytest.param(WHOLE_ROWS[-1].block + 1, id="passes-twice-one-element-in-the-last-step"),
        pytest.param(3 * STEPS.block, id="passes-twice-in-full-steps"),
    ],
)
def test_a_mean_of_a_thousand_deviations(hidden: int, device: torch.device) -> None:
    """Of the mean of squares less the square of the mean, float32 would hold three bits."""
    x = 1000 + torch.randn(2, hidden, generator=seeded(0)).to(device)
    weight, bias = torch.randn(2, hidden, generator=seeded(1)).to(device)
    wide = x.double()
    variance, mean = torch.var_mean(wide, -1, keepdim=True, correction=0)
    expected = (wide - mean) / (variance + 1e-5).sqrt() * weight + bias
    allowed = Tolerance(
        max_abs=5e-4, rel=0.0, rms=1e-4, reason="float32 holds the mean to 1000 * 2^-24 deviations"
    )
    assert_close(layernorm(x, weight, bias), expected, tolerance=allowed)
    assert_close(layernorm(x, weight), expected - bias, tolerance=allowed)
