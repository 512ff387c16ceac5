"""Layouts, fragments and descriptors against CuTe's own: what we place, its maps find, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.testing.emulator import Launch
from tests.emulator import cute
from tests.emulator.specs import spec
from tests.emulator.test_layouts import offsets
from tests.machines import ADA_MACHINES, HOPPER_MACHINES, MACHINES, kernel_on

MMA16 = ("atom/mma_traits_sm80.hpp", "MMA_Traits<SM80_16x8x16_F16F16F16F16_TN>")
MMA32 = ("atom/mma_traits_sm89.hpp", "MMA_Traits<SM89_16x8x32_F32E4M3E4M3F32_TN>")
GMMA = "atom/mma_traits_sm90_gmma.hpp"


def multiply(machine: str, name: str, launch: Launch, a: Tensor, b: Tensor, d: Tensor) -> None:
    kernel_on(machine, spec(f"layouts::{name}", "ProductParams")).run(launch, a=a, b=b, d=d)


def indices(layout: Any) -> Tensor:
    """``[threads, values]``: which element of the column-major tile each holds."""
    threads, values = (cute.pycute.product(mode) for mode in layout.shape)
    return torch.tensor([[layout(t, v) for v in range(values)] for t in range(threads)])


def fragments(tile: Tensor, layout: Any) -> Tensor:
    """``[threads, values]`` of a tile ``[m, k]``, as int32 registers."""
    return tile.T.flatten()[indices(layout)].contiguous().view(torch.int32)


def gathered(values: Tensor, layout: Any, shape: tuple[int, int]) -> Tensor:
    """The tile ``[m, n]`` of which the threads hold ``values``."""
    tile = torch.full((shape[0] * shape[1],), torch.nan)
    tile[indices(layout).flatten()] = values.flatten()
    return tile.view(shape[1], shape[0]).T


def operands(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Whole numbers, so that sums are exact: ``[m, k]`` and ``[n, k]``."""
    generator = torch.Generator().manual_seed(m + n + k)
    return tuple(torch.randint(-8, 9, (rows, k), generator=generator).float() for rows in (m, n))


@pytest.mark.parametrize("machine", ADA_MACHINES)
@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("Half", torch.float16),
        ("Bf16", torch.bfloat16),
        ("E4m3", torch.float8_e4m3fn),
        ("E5m2", torch.float8_e5m2),
    ],
)
def test_fragments_of_mma(machine: str, element: str, dtype: torch.dtype) -> None:
    header, traits = MMA32 if dtype.itemsize == 1 else MMA16
    k = 32 if dtype.itemsize == 1 else 16
    maps = [cute.layout(header, f"{which}Layout", within=traits) for which in "ABC"]
    a, b = operands(16, 8, k)
    a, b = a.to(dtype), b.to(dtype)
    d = torch.empty(32, 4)
    name, of_a, of_b = f"mma<attnhub::{element}>", fragments(a, maps[0]), fragments(b, maps[1])
    multiply(machine, name, Launch(block=32), of_a, of_b, d)
    assert torch.equal(gathered(d, maps[2], (16, 8)), a.float() @ b.float().T)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("order", ["kRowsFirst", "kChunksFirst"])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_makes_the_fragments_of_mma(machine: str, order: str, transposed: bool) -> None:
    """The four ways to load an operand that fragments.cuh lists."""
    name = f"load_block<attnhub::Ldmatrix::{order}, {str(transposed).lower()}>"
    found = offsets(machine, name, 128, smem=16 * 48).view(32, 4)
    block = torch.arange(256, dtype=torch.int16).view(16, 16)
    tile = block.T if transposed else block  # [m or n, k]
    if (order == "kRowsFirst") != transposed:  # A
        expected = fragments(tile, cute.layout(MMA16[0], "ALayout", within=MMA16[1]))
    else:  # B, of two products
        layout = cute.layout(MMA16[0], "BLayout", within=MMA16[1])
        expected = torch.cat([fragments(half, layout) for half in tile.split(8)], dim=1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [8, 64, 256])  # of mma, and the least and the largest of wgmma
def test_accumulator(machine: str, n: int) -> None:
    found = offsets(machine, "accumulator", 32 * n // 2).view(32, n // 2)
    layout = cute.layout(GMMA, "CLayout_64xN", N=n)
    expected = indices(layout)[:32]  # the first warp
    assert torch.equal(found, expected % 64 * 256 + expected // 64)
    if n == 8:
        of_mma = indices(cute.layout(MMA16[0], "CLayout", within=MMA16[1]))
        assert torch.equal(found, of_mma % 16 * 256 + of_mma // 16)


def test_accumulators_are_the_next_operand() -> None:
    """pack(d[2 i], d[2 i + 1]) of two n8 tiles is A: value v of the one is value v of the other."""
    d = indices(cute.layout(GMMA, "CLayout_64xN", N=16))
    assert torch.equal(d, indices(cute.layout(GMMA, "ALayout_64x16")))
    a = indices(cute.layout(MMA16[0], "ALayout", within=MMA16[1]))
    assert torch.equal(d[:32] % 64 + d[:32] // 64 * 16, a)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
def test_swizzle(machine: str, bits: int) -> None:
    found = offsets(machine, f"swizzle<{bits}, 4, 3>", 4096)
    swizzle = cute.pycute.Swizzle(bits, 4, 3)
    assert found.tolist() == [swizzle(i) for i in range(4096)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("row_bytes", "atom"), [(32, "SW32"), (64, "SW64"), (128, "SW128"), (256, "SW128")]
)
def test_tile_is_the_canonical_layout(machine: str, row_bytes: int, atom: str) -> None:
    found = offsets(machine, f"tile<{row_bytes}>", 16 * row_bytes // 16).view(16, -1)
    layout = cute.layout(GMMA, f"Layout_K_{atom}_Atom_Bits")
    expected = torch.tensor(cute.places(layout, 16, row_bytes, element_bytes=1))
    assert torch.equal(found, expected[:, ::16])  # the first byte of each chunk


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize(
    ("major", "n", "k", "atom"),
    [
        ("kK", 64, 16, "Layout_K_SW32_Atom_Bits"),
        ("kK", 64, 32, "Layout_K_SW64_Atom_Bits"),
        ("kK", 128, 64, "Layout_K_SW128_Atom_Bits"),
        ("kK", 64, 128, "Layout_K_SW128_Atom_Bits"),  # two panels along K
        ("kMn", 64, 32, "Layout_MN_SW128_Atom_Bits"),
        ("kMn", 128, 64, "Layout_MN_SW128_Atom_Bits"),  # two panels along N
    ],
)
def test_descriptors_read_the_canonical_layout(
    machine: str, major: str, n: int, k: int, atom: str
) -> None:
    """wgmma through our descriptors, of a tile that CuTe's layout has placed."""
    a, b = (x.half() for x in operands(64, n, k))
    # In a tile [k, n] the panels of n follow one another after all of k.
    layout, right_first = cute.layout(GMMA, atom), major == "kMn"
    at = torch.tensor(cute.places(layout, n, k, element_bytes=2, right_first=right_first))
    smem = torch.full((n * k,), torch.nan).half()
    smem[at // 2] = b
    map_a = cute.layout(GMMA, "ALayout_64x16")
    steps = torch.stack([fragments(part.contiguous(), map_a) for part in a.split(16, dim=1)])
    d = torch.empty(128, n // 2)
    name, launch = (
        f"wgmma<{n}, {k}, attnhub::ptx::Major::{major}>",
        Launch(block=128, smem=2 * n * k),
    )
    multiply(machine, name, launch, steps, smem.view(torch.int32), d)
    made = gathered(d, cute.layout(GMMA, "CLayout_64xN", N=n), (64, n))
    assert torch.equal(made, a.float() @ b.float().T)
