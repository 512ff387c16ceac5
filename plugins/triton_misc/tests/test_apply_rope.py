"""Angles on the fly where the conformance suite does not reach: positions, steps, mixed outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import Rope
from attnhub.testing import assert_close, seeded
from attnhub_triton_misc import settings


def heads(count: int, dim: int, device: torch.device, tokens: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(tokens, count, dim, generator=seeded(seed)).to(device)


def turned(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """By complex numbers in float64; the angle is a float32 product, as everywhere."""
    pairs = x.shape[-1] // 2
    frequencies = rope.theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = positions.cpu().float()[:, None] * frequencies.float()
    turn = torch.polar(torch.ones_like(angles).double(), angles.double())[:, None]
    a, b = x.cpu().double().chunk(2, dim=-1)
    y = torch.complex(a, b) * turn
    return torch.cat([y.real, y.imag], dim=-1).float().to(x.device)


def test_positions_of_any_size(device: torch.device) -> None:
    # Past 105615 radians, sine and cosine reduce their argument by another algorithm; the last is
    # the greatest that there is, which float32 rounds up.
    positions = torch.tensor([-5, 131073, 2**31 - 1], dtype=torch.int32, device=device)
    q, k = heads(2, 16, device), heads(1, 16, device, seed=1)
    for x, y in zip((q, k), attnhub.rope.apply_rope(q, k, positions, Rope()), strict=True):
        assert_close(y, turned(x, positions, Rope()))


@pytest.mark.parametrize("programs", [1, 3], ids=["one for all steps", "steps shared unevenly"])
def test_a_program_goes_through_many_heads(
    programs: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, dim = 3, 256  # in steps of four heads: three of queries and two of keys
    monkeypatch.setattr(settings, "FULL", programs * 4)  # of up to 4 tokens, as the plan is told
    assert settings.heads_of_token((9, 5), dim, 4).programs == programs
    q, k = heads(9, dim, device, tokens), heads(5, dim, device, tokens, seed=1)
    positions = torch.tensor([7, 0, 100], dtype=torch.int32, device=device)
    out = torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)
    attnhub.rope.apply_rope(q, k, positions, Rope(theta=77.0 + programs), out=out)
    for x, y in zip((q, k), out, strict=True):
        assert_close(y, turned(x, positions, Rope(theta=77.0 + programs)))


def test_queries_in_place_beside_new_keys(device: torch.device) -> None:
    q, k = heads(2, 24, device), heads(2, 24, device, seed=1)
    positions = torch.tensor([3, 1, 4], dtype=torch.int32, device=device)
    expected = [torch.cat([turned(x[..., :8], positions, Rope()), x[..., 8:]], -1) for x in (q, k)]
    k_out = torch.full_like(k, torch.nan)
    attnhub.rope.apply_rope(q, k, positions, Rope(rotary_dim=8), out=(q, k_out))
    assert_close(q, expected[0])
    assert_close(k_out, expected[1])
