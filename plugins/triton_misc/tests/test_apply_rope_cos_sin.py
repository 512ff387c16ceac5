"""Looked-up angles where the conformance suite does not reach: a program with many steps."""

from __future__ import annotations

import pytest
import torch

import attnhub
from attnhub.testing import assert_close, seeded
from attnhub_triton_misc import settings


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_a_program_goes_through_many_heads(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, *, interleaved: bool
) -> None:
    monkeypatch.setattr(settings, "FULL", 1)
    # In steps of 16 heads, of which the last of queries has one: 24 elements have room for 32.
    q, k = (torch.randn(2, n, 48, generator=seeded(n)).to(device) for n in (17, 3))
    # Turns by multiples of a quarter, which have exact results.
    cache = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], device=device)
    cache = cache.repeat_interleave(12, dim=1)
    positions = torch.tensor([3, 2], dtype=torch.int32, device=device)
    result = attnhub.rope.apply_rope_cos_sin(q, k, positions, cache, interleaved=interleaved)
    for x, y in zip((q, k), result, strict=True):
        pairs = x[..., :24].unflatten(-1, (12, 2) if interleaved else (2, 12))
        a, b = pairs.unbind(-1 if interleaved else -2)
        expected = x.clone()
        expected[0, :, :24] = torch.stack([b, -a], -1 if interleaved else -2).flatten(-2)[0]
        expected[1, :, :24] *= -1
        assert_close(y, expected)
