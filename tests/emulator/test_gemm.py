"""A tensor-core GEMM: right numbers, and in the emulator every planted bug found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.plugin import KernelSpec
from attnhub.testing.emulator import EmulatorError, Launch, OutOfBounds, RaceDetected
from tests.emulator.specs import spec
from tests.machines import MACHINES, kernel_on

DTYPES = {"Small": torch.float16, "Wide": torch.bfloat16}
BLOCKS = {"Small": 64, "Wide": 128}
SMEM = {"Small": 3 * 2 * 64 * 64, "Wide": 3 * 2 * 128 * 128}


def gemm(traits: str, bug: str = "kNone") -> KernelSpec:
    return spec(f"gemm_tile::gemm<gemm_tile::{traits}, gemm_tile::Bug::{bug}>")


def run(
    machine: str, traits: str, sizes: tuple[int, int, int], *, bug: str = "kNone", seed: int = 0
) -> tuple[Tensor, Tensor]:
    """What the kernel made and the float64 product."""
    m, n, k = sizes
    generator = torch.Generator().manual_seed(m + n + k)
    a = torch.randn((m, k), generator=generator).to(DTYPES[traits])
    b = torch.randn((n, k), generator=generator).to(DTYPES[traits])
    c = torch.full((m, n), torch.nan)
    block = BLOCKS[traits]
    grid = (-(-m // block), -(-n // block))
    launch = Launch(grid=grid, block=128, smem=SMEM[traits], seed=seed)
    kernel_on(machine, gemm(traits, bug)).run(launch, a=a, b=b, c=c, m=m, n=n, k=k)
    return c, a.double() @ b.double().T


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("traits", "sizes"),
    [
        ("Small", (64, 64, 32)),  # one tile, one block of K: fewer than the stages
        ("Small", (64, 64, 256)),  # the ring of stages turns more than twice
        ("Small", (65, 127, 40)),  # four CTAs, masked rows and columns, a partial block of K
        ("Small", (1, 1, 8)),  # the least there is
        ("Wide", (128, 128, 192)),  # bfloat16, rows of 128 bytes
    ],
)
def test_product(machine: str, traits: str, sizes: tuple[int, int, int]) -> None:
    made, expected = run(machine, traits, sizes)
    # Products are exact in float32; the sum of k of them is within k roundings of its largest, and
    # tensor cores cut off where float32 rounds.
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=sizes[2] * 2e-6)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_schedule_gives_the_same_bits(machine: str, seed: int) -> None:
    sizes = (65, 64, 96)
    first, _ = run(machine, "Small", sizes)
    assert torch.equal(run(machine, "Small", sizes, seed=seed)[0], first)


@pytest.mark.parametrize(
    ("bug", "error", "text"),
    [
        ("kNoBarrier", RaceDetected, r"shared byte \d+, which thread \d+ .*, with no barrier"),
        ("kNoWait", RaceDetected, r"while a copy by thread \d+ to it is in flight"),
        ("kSmemTooLow", OutOfBounds, r"copies to 16 bytes of shared memory at offset 24576 of"),
        ("kNoRowMask", OutOfBounds, r"copies from 16 bytes of global memory at offset \d+ of a,"),
        ("kNoZeroFill", OutOfBounds, r"global memory at offset \d+ of [ab],"),
    ],
)
def test_finds(bug: str, error: type[EmulatorError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run("emulator", "Small", (65, 64, 136), bug=bug)
    assert "at gemm_tile.cuh:" in str(caught.value)
    assert "CTA (0, 0, 0):\n  thread" in caught.value.dump


def test_a_wrong_swizzle_gives_wrong_numbers() -> None:
    made, expected = run("emulator", "Small", (64, 64, 32), bug="kWrongSwizzle")
    assert (made - expected).abs().max() > 1
