"""TMA, mbarriers and wgmma: right numbers, and in the emulator every planted bug found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.plugin import KernelSpec
from attnhub.testing.emulator import (
    EmulatorDeadlock,
    EmulatorError,
    Launch,
    Misuse,
    RaceDetected,
    TensorMap,
)
from tests.emulator.specs import spec
from tests.machines import HOPPER_MACHINES, kernel_on

SMEM = 5 * 8192 + 1024
DTYPES = {"Half": torch.float16, "Bf16": torch.bfloat16}


def gemm(dtype: str, *, registers: bool, bug: str = "kNone") -> KernelSpec:
    arguments = f"attnhub::{dtype}, {str(registers).lower()}, gemm_hopper::Bug::{bug}"
    return spec(f"gemm_hopper::gemm<{arguments}>", bounds=(256, 1))


def run(
    machine: str,
    sizes: tuple[int, int, int],
    *,
    dtype: str = "Half",
    registers: bool = False,
    bug: str = "kNone",
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """What the kernel made and the float64 product."""
    m, n, k = sizes
    generator = torch.Generator().manual_seed(m + n + k)
    a = torch.randn((m, k), generator=generator).to(DTYPES[dtype])
    b = torch.randn((k, n), generator=generator).to(DTYPES[dtype])
    c = torch.full((m, n), torch.nan, dtype=DTYPES[dtype])
    maps = {
        "a": TensorMap(tensor=a, box=(64, 64)),
        "b": TensorMap(tensor=b if registers else b.T.contiguous(), box=(64, 64)),
        "c": TensorMap(tensor=c, box=(64, 64), writable=True),
    }
    launch = Launch(grid=(-(-m // 64), -(-n // 64)), block=256, smem=SMEM, seed=seed)
    kernel_on(machine, gemm(dtype, registers=registers, bug=bug)).run(launch, **maps, k=k)
    return c, a.double() @ b.double()


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("registers", [False, True])  # and B with K or with N contiguous
@pytest.mark.parametrize(
    "sizes",
    [
        (64, 64, 64),  # one tile, one block of K
        (72, 80, 328),  # four CTAs, boxes cut at every side, the ring turns three times
    ],
)
def test_product(machine: str, dtype: str, registers: bool, sizes: tuple[int, int, int]) -> None:
    made, expected = run(machine, sizes, dtype=dtype, registers=registers)
    # One rounding of the result to 16 bits, besides those of the float32 sum.
    rounding = torch.finfo(DTYPES[dtype]).eps / 2
    torch.testing.assert_close(made.double(), expected, rtol=1.01 * rounding, atol=3e-4)


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_schedule_gives_the_same_bits(machine: str, seed: int) -> None:
    sizes = (64, 64, 328)
    assert torch.equal(run(machine, sizes, seed=seed)[0], run(machine, sizes)[0])


@pytest.mark.parametrize(
    ("bug", "error", "text"),
    [
        ("kWrongPhase", RaceDetected, "reads shared byte .* while a copy by tma_load"),
        ("kOverArrive", Misuse, "once too often: all 1 arrivals of phase 0 have come, 16384 bytes"),
        ("kTooFewBytes", EmulatorDeadlock, "no thread can go on"),
        ("kTooManyBytes", EmulatorDeadlock, "no thread can go on"),
        ("kNoWgmmaWait", RaceDetected, "overwrites shared byte .* wgmma of warpgroup 1 read"),
        ("kNoProxyFence", RaceDetected, "no fence_proxy_async between"),
        ("kNoStoreWait", Misuse, "ends without bulk_wait"),
        ("kNoEmptyWait", EmulatorError, "at gemm_hopper.cuh:"),
        ("kForgetsInit", Misuse, "where none was initialised"),
    ],
)
def test_finds(bug: str, error: type[EmulatorError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run("emulator", (64, 64, 328), bug=bug)
    assert "at gemm_hopper.cuh:" in str(caught.value)
    if error is EmulatorDeadlock:
        assert "waits on mbarrier at shared offset" in caught.value.dump
        assert "bytes" in caught.value.dump


@pytest.mark.parametrize(
    ("shape", "box", "swizzle"),
    [
        ((8, 64), (8,), 128),  # too few extents
        ((8, 512), (8, 512), 0),  # more than 256
        ((8, 64), (8, 64), 16),  # no such swizzle
        ((8, 64), (8, 64), 64),  # rows wider than the swizzle
        ((8, 64), (8, 4), 32),  # rows of 8 bytes
        ((8, 12), (8, 8), 32),  # a stride that is not a multiple of 16 bytes
    ],
)
def test_refuses_map(shape: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> None:
    with pytest.raises(InvalidArgument):
        TensorMap(tensor=torch.zeros(shape, dtype=torch.float16), box=box, swizzle=swizzle)
