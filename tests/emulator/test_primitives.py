"""Each wrapper does what PTX says; in the emulator each misuse of one raises its own error."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.plugin import KernelSpec, ParamLayout
from attnhub.testing.emulator import (
    BuildFailed,
    EmulatorDeadlock,
    EmulatorError,
    EmulatorTimeout,
    Launch,
    Misuse,
    OutOfBounds,
    RaceDetected,
)
from tests.emulator.specs import spec
from tests.machines import HOPPER_MACHINES, MACHINES, emulated, kernel_on

ON_MACHINES = pytest.mark.parametrize("machine", MACHINES)
ON_HOPPER = pytest.mark.parametrize("machine", HOPPER_MACHINES)


def primitive(name: str) -> KernelSpec:
    return spec(f"primitives::{name}")


def run(machine: str, name: str, launch: Launch, **values: Any) -> None:
    given = {"x": None, "y": None, "words": None, "n": 0} | values
    kernel_on(machine, primitive(name)).run(launch, **given)


@ON_MACHINES
def test_shuffles_and_ballot(machine: str) -> None:
    x = torch.randn(32)
    y, words = torch.full((7, 32), torch.nan), torch.zeros(32, dtype=torch.int32)
    run(machine, "shuffles", Launch(block=32), x=x, y=y, words=words)
    lane = torch.arange(32)
    sources = [
        torch.full((32,), 5),
        lane // 8 * 8 + 1,
        lane ^ 3,
        torch.where(lane < 2, lane, lane - 2),
        torch.where(lane % 16 > 13, lane, lane + 2),
        torch.full((32,), 31),
    ]
    for row, source in zip(y, sources, strict=False):
        assert torch.equal(row, x[source])
    assert torch.equal(y[6, :16], x[lane[:16] ^ 1])
    assert y[6, 16:].isnan().all()
    votes = sum(1 << int(i) for i in lane[x > 0])
    assert (words.long() & 0xFFFFFFFF == votes).all()


@ON_MACHINES
@pytest.mark.parametrize("above", [None, 3, 20])  # no lane, one of the lower and of the upper half
def test_votes_and_movmatrix(machine: str, above: int | None) -> None:
    x, words = torch.zeros(32), torch.full((3, 32), -1, dtype=torch.int32)
    if above is not None:
        x[above] = 2
    run(machine, "votes", Launch(block=32), x=x, words=words)
    matrix = torch.arange(64, dtype=torch.int16).view(8, 8)
    assert torch.equal(words[0].view(torch.int16).view(8, 8), matrix.T)
    assert (words[1] == (above is not None)).all()
    assert (words[2, 16:] == (above == 20)).all()
    assert (words[2, :16] == -1).all()


def flushed(x: Tensor) -> Tensor:
    """Without subnormals, as the special-function unit takes it."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0 * x, x)


def assert_same(made: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)


@ON_MACHINES
def test_functions_and_conversions(machine: str) -> None:
    special = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 6e-8, 3e-8, 1e-5, 1e-40, 3e38]
    special += [1.00048828125, 1.00146484375, 1.00390625, 1.01171875]  # ties of half and bfloat16
    x = torch.tensor([*special, math.inf, *(-v for v in special), -math.inf, math.nan])
    x = torch.cat([x, torch.randn(100)])
    y, words = torch.empty(10, len(x)), torch.empty(len(x), dtype=torch.int32)
    run(machine, "functions", Launch(block=32), x=x, y=y, words=words, n=len(x))

    def close(made: Tensor, expected: Tensor, rtol: float = 1e-6, atol: float = 1e-37) -> None:
        if machine == "emulator":  # whose functions are exact
            rtol, atol = 1e-6, 1e-37
        torch.testing.assert_close(made, expected, rtol=rtol, atol=atol, equal_nan=True)

    # Bounds of the PTX ISA, doubled.
    close(y[0], torch.exp2(x))
    close(y[1], torch.log2(flushed(x)), atol=2**-21)
    close(y[2], 1 / flushed(x))
    close(y[3], torch.tanh(x), rtol=2**-10)
    reduced = (x.abs() <= math.pi) | ~x.isfinite() | (machine == "emulator")
    close(y[4, reduced], torch.sin(flushed(x))[reduced], atol=2**-19.9)
    close(y[5, reduced], torch.cos(x)[reduced], atol=2**-19.9)
    rounded = {6: x.half(), 7: x.bfloat16(), 8: -x.half(), 9: -x.bfloat16()}
    for row, expected in rounded.items():
        assert_same(y[row], expected.float())
    assert_same((words & 0xFFFF).to(torch.int16).view(torch.float16), x.half())


@ON_MACHINES
@pytest.mark.parametrize(
    ("element", "num_bytes"),
    [
        ("attnhub::u8", 1),
        ("attnhub::u16", 2),
        ("float", 4),
        ("attnhub::Vec<float, 2>", 8),
        ("attnhub::Vec<float, 4>", 16),
    ],
)
def test_every_width(machine: str, element: str, num_bytes: int) -> None:
    x = torch.randn(64 * num_bytes // 4)
    y = torch.empty(4, len(x))
    run(machine, f"widths<{element}>", Launch(block=64, smem=64 * num_bytes), x=x, y=y)
    rows = x.view(torch.uint8).view(64, num_bytes)
    partly_valid = rows.clone()
    partly_valid[7::8] = 0
    expected = torch.stack([partly_valid.flip(0), rows.flip(0), rows, rows])
    assert torch.equal(y.view(torch.uint8).view(4, 64, num_bytes), expected)


@ON_HOPPER
@pytest.mark.parametrize("seed", [0, 1])
def test_copies_arrive_at_an_mbarrier(machine: str, seed: int) -> None:
    x = torch.randn(64)
    y = torch.empty_like(x)
    run(machine, "copies_arrive", Launch(block=64, smem=16 + 256, seed=seed), x=x, y=y)
    assert torch.equal(y, x.flip(0))


@ON_MACHINES
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(machine: str, count: int, transposed: bool) -> None:
    words = torch.empty(32 * count, dtype=torch.int32)
    name = f"matrix<{count}, {str(transposed).lower()}>"
    run(machine, name, Launch(block=32, smem=128 * count), words=words)
    matrices = torch.arange(64 * count, dtype=torch.int16).view(count, 8, 8)
    expected = matrices.mT if transposed else matrices
    assert torch.equal(words.view(torch.int16).view(count, 8, 8), expected)


@ON_HOPPER
@pytest.mark.parametrize("transposed", [False, True])  # by stmatrix, else by ldmatrix
@pytest.mark.parametrize("count", [2, 4])
def test_stmatrix(machine: str, count: int, transposed: bool) -> None:
    words = torch.empty(32 * count, dtype=torch.int32)
    name = f"transpose<{count}, {str(transposed).lower()}>"
    run(machine, name, Launch(block=32, smem=128 * count), words=words)
    matrices = torch.arange(64 * count, dtype=torch.int16).view(count, 8, 8)
    assert torch.equal(words.view(torch.int16).view(count, 8, 8), matrices.mT)


@ON_MACHINES
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_named_barriers_hand_over(machine: str, seed: int) -> None:
    x = torch.randn(5, 32)
    y = torch.empty_like(x)
    run(machine, "hand_over<true>", Launch(block=64, smem=128, seed=seed), x=x, y=y, n=5)
    assert torch.equal(y, x)


def test_a_hand_over_that_nobody_begins_is_a_deadlock() -> None:
    x = torch.randn(5, 32)
    with pytest.raises(EmulatorDeadlock, match="no thread can go on") as caught:
        run("emulator", "hand_over<false>", Launch(block=64, smem=128), x=x, y=x.clone(), n=5)
    assert "threads 0-31: waits on named barrier 2, at primitives.cuh:" in caught.value.dump
    assert "threads 32-63: waits on named barrier 1, at primitives.cuh:" in caught.value.dump
    assert "barrier 1: 32 of 64 threads have come" in caught.value.dump


@ON_MACHINES
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("resident", [1, 3, 16])  # one by one, in waves, all at once
def test_ctas_meet_in_global_memory(machine: str, seed: int, resident: int) -> None:
    x = torch.arange(9, dtype=torch.float32)
    y, words = torch.empty(10), torch.zeros(4, dtype=torch.int32)
    launch = Launch(grid=(9,), block=32, seed=seed, resident=resident)
    run(machine, "last_one_sums", launch, x=x, y=y, words=words)
    assert y[9] == 36
    assert words[0] == 9
    run(machine, "relay", launch, words=words.zero_())
    assert words.tolist() == [9, 8, 1, 36]


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("kBarrierInBranch", EmulatorDeadlock, "no thread can go on"),
        ("kWarpSplit", Misuse, r"while other lanes of its warp are at"),
        ("kMisaligned", Misuse, "reads 16 bytes of global memory at .* not a multiple of 16"),
        ("kWritesConst", OutOfBounds, "writes x, a const parameter"),
        ("kReadsPastSmem", OutOfBounds, "reads 4 bytes of shared memory at offset 256 of 256"),
        ("kReadsBeforeSmem", OutOfBounds, "reads 4 bytes of shared memory at offset -1024 of 256"),
        ("kReadsPastTensor", OutOfBounds, "reads 4 bytes .* at offset 64 of x, which has 64"),
        ("kWritesPastTensor", OutOfBounds, "writes 4 bytes .* at offset -4 of y, which has 64"),
        ("kReadsNull", OutOfBounds, "global memory at 0, which is in no tensor"),
        ("kBarrierCount", Misuse, "named barrier 1 for 32 threads, others use it for 64"),
        ("kPollsForever", EmulatorTimeout, r"did not finish within 0\.2"),
        ("kNoWarpSync", RaceDetected, "which thread 0 .*, with no barrier between"),
        ("kReadsTooSoon", RaceDetected, "reads shared byte 0 while a copy by thread 0"),
        ("kPlainPointer", OutOfBounds, "touches memory without a wrapper"),
    ],
)
def test_finds(fault: str, error: type[EmulatorError], text: str) -> None:
    # Neighbours in memory: one step past x lies in y.
    x, y = torch.zeros(32).split(16)
    launch = Launch(block=64, smem=256, timeout_s=0.2)
    with pytest.raises(error, match=text) as caught:
        run("emulator", f"faulty<primitives::Fault::{fault}>", launch, x=x, y=y, n=16)
    assert "at primitives.cuh:" in str(caught.value)


def test_finds_a_stack_overflow() -> None:
    launch = Launch(block=64, smem=256)
    with pytest.raises(OutOfBounds, match="overflows its stack"):
        run("emulator", "faulty<primitives::Fault::kOverflowsStack>", launch)


def test_a_run_repeats_exactly() -> None:
    x = torch.randn(5, 32)
    kernel, launch = emulated(primitive("hand_over<true>")), Launch(block=64, smem=128, seed=5)
    counts = {kernel.run(launch, x=x, y=x.clone(), words=None, n=5) for _ in range(3)}
    assert len(counts) == 1


def test_races_can_be_let_pass() -> None:
    launch = Launch(block=64, smem=256, races=False)
    run("emulator", "faulty<primitives::Fault::kNoWarpSync>", launch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block": 48},  # not whole warps
        {"block": 2048},
        {"block": 32, "grid": ()},
        {"block": 32, "grid": (1, 0)},
        {"block": 32, "smem": 232_449},  # one byte more than a CTA has
        {"block": 32, "resident": 0},
    ],
)
def test_refuses_launch(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Launch(**wrong)


def test_refuses_values_that_do_not_fit() -> None:
    launch, x = Launch(block=32), torch.zeros(32)
    with pytest.raises(InvalidArgument, match="missing or unknown"):
        emulated(primitive("shuffles")).run(launch, x=x)
    with pytest.raises(InvalidArgument, match=r"x is torch.float64: const float\* takes"):
        run("emulator", "shuffles", launch, x=x.double())
    with pytest.raises(InvalidArgument, match="takes a CPU tensor"):
        run("emulator", "shuffles", launch, x=3)


def test_refuses_fields_that_differ_from_the_source() -> None:
    params = ParamLayout({"x": "const float*", "y": "float*", "n": "int", "words": "i32*"})
    with pytest.raises(InvalidArgument, match=r"at 'n': it is at byte 16 .* byte 24"):
        emulated(replace(primitive("shuffles"), params=params))


def test_a_compile_error_is_quoted() -> None:
    with pytest.raises(BuildFailed, match=r"absent: .*error: .absent. is not a member"):
        emulated(primitive("absent"))
