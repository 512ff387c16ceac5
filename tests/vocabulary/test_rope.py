"""Rotation inside a kernel: the reference's pairs and scalings, and angles of a million turns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.rope.frequencies import inverse_frequencies
from attnhub.rope.reference import apply_rope
from attnhub.variant import LinearScaling, Llama3Scaling, Rope, YarnScaling
from tests.machines import MACHINES
from tests.vocabulary import run

LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)


def turned(machine: str, x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """``x [tokens, dim]`` turned by the kernel."""
    rotary_dim = rope.rotary_dim or x.shape[1]
    frequencies, factor = inverse_frequencies(rotary_dim, rope.theta, rope.scaling)
    made = x.clone()
    run(
        machine,
        f"rope<{rotary_dim}, {str(rope.interleaved).lower()}>",
        "RopeParams",
        frequencies=frequencies,
        positions=positions,
        x=made,
        factor=factor,
        tokens=len(x),
        dim=x.shape[1],
    )
    return made


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "rope",
    [
        Rope(),
        Rope(interleaved=True, scaling=LinearScaling(factor=4)),
        Rope(rotary_dim=16, theta=5e5, scaling=LLAMA3),  # channels 16 to 63 do not turn
        Rope(
            rotary_dim=16,
            interleaved=True,
            scaling=YarnScaling(factor=4, original_max_position=4096),
        ),
    ],
    ids=str,
)
def test_equals_the_reference(machine: str, rope: Rope) -> None:
    # Of either sign, and the largest position that float32 holds exactly.
    positions = torch.tensor(
        [0, 1, -1, 7, 8191, 131_071, -(2**20), 2**20, 2**23], dtype=torch.int32
    )
    x = torch.randn(len(positions), 64, generator=torch.Generator().manual_seed(0))
    expected = apply_rope(x[:, None], positions, rope)[:, 0]
    atol = 2e-6 if machine == "emulator" else 1e-5  # x is up to 4, the error up to 2^-20 of it
    torch.testing.assert_close(turned(machine, x, positions, rope), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("machine", MACHINES)
def test_error_of_the_angle(machine: str) -> None:
    """The bounds that rope.cuh states; the emulator's special-function unit is exact."""
    generator = torch.Generator().manual_seed(1)
    spread = [
        torch.randint(-(2**bits), 2**bits, (300,), generator=generator) for bits in range(4, 24)
    ]
    positions = torch.cat(spread).to(torch.int32)
    x = torch.tensor([1.0, 0.0] * 32).repeat(len(positions), 1)  # a pair becomes (cos, sin)
    rope = Rope(interleaved=True)
    made = turned(machine, x, positions, rope).double()
    frequencies, _ = inverse_frequencies(64, rope.theta)
    angles = (positions.float()[:, None] * frequencies).double()
    error = (torch.stack([angles.cos(), angles.sin()], -1).flatten(1) - made).abs()
    assert error.max() < (2**-22.5 if machine == "emulator" else 2**-20)
