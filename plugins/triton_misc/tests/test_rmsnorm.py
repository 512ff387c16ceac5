"""What conformance does not reach of rmsnorm: rows on three levels of strides."""

from __future__ import annotations

import torch

from attnhub.norm import rmsnorm
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded


def test_rows_that_no_two_strides_reach(device: torch.device) -> None:
    x = torch.randn(4, 3, 2, 40, generator=seeded(0)).to(device).transpose(0, 2)
    weight = torch.linspace(-1, 1, 40, device=device)
    wide = x.double()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert_close(rmsnorm(x, weight), wide * scale * weight)
