"""A tensor-core GEMM in the emulator: right numbers, and every planted bug found."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnhub.testing.emulator import (
    EmulatedKernel,
    EmulatorError,
    Launch,
    OutOfBounds,
    RaceDetected,
)

KERNELS = Path(__file__).parent / "kernels"
FIELDS = {"a": "const void*", "b": "const void*", "c": "float*", "m": "int", "n": "int", "k": "int"}
DTYPES = {"Small": torch.float16, "Wide": torch.bfloat16}
BLOCKS = {"Small": 64, "Wide": 128}
SMEM = {"Small": 3 * 2 * 64 * 64, "Wide": 3 * 2 * 128 * 128}


@functools.cache
def gemm(traits: str, bug: str = "kNone") -> EmulatedKernel:
    return EmulatedKernel(
        "gemm_tile.cuh",
        kernel=f"gemm::gemm_tile<gemm::{traits}, gemm::Bug::{bug}>",
        params="gemm::Params",
        fields=FIELDS,
        include_dirs=[KERNELS],
    )


def run(
    kernel: EmulatedKernel, traits: str, sizes: tuple[int, int, int], seed: int = 0
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
    kernel.run(launch, a=a, b=b, c=c, m=m, n=n, k=k)
    return c, a.double() @ b.double().T


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
def test_product(traits: str, sizes: tuple[int, int, int]) -> None:
    made, expected = run(gemm(traits), traits, sizes)
    # Products are exact in float32; the sum of k of them is within k roundings of its largest.
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=sizes[2] * 1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_schedule_gives_the_same_bits(seed: int) -> None:
    sizes = (65, 64, 96)
    first, _ = run(gemm("Small"), "Small", sizes)
    assert torch.equal(run(gemm("Small"), "Small", sizes, seed)[0], first)


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
        run(gemm("Small", bug), "Small", (65, 64, 136))
    assert "at gemm_tile.cuh:" in str(caught.value)
    assert "CTA (0, 0, 0):\n  thread" in caught.value.dump


def test_a_wrong_swizzle_gives_wrong_numbers() -> None:
    made, expected = run(gemm("Small", "kWrongSwizzle"), "Small", (64, 64, 32))
    assert (made - expected).abs().max() > 1
