"""Swizzles: the bits that CuTe's formula names, each byte once, and no bank conflict."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.testing.emulator import Launch
from tests.emulator.specs import spec
from tests.machines import MACHINES, kernel_on


def offsets(machine: str, name: str, count: int, *, smem: int = 0) -> Tensor:
    found = torch.empty(count, dtype=torch.int32)
    kernel = kernel_on(machine, spec(f"layouts::{name}"))
    kernel.run(Launch(block=32, smem=smem), offsets=found, n=count)
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("bits", "base", "shift"),
    [
        (3, 4, 3),  # TMA's 128 bytes
        (2, 4, 3),  # 64 bytes
        (1, 4, 3),  # 32 bytes
        (0, 4, 3),  # none
        (2, 3, 5),  # any other
    ],
)
def test_swizzle(machine: str, bits: int, base: int, shift: int) -> None:
    found = offsets(machine, f"swizzle<{bits}, {base}, {shift}>", 4096)
    mask = (1 << bits) - 1
    expected = [i ^ (((i >> (base + shift)) & mask) << base) for i in range(4096)]
    assert found.tolist() == expected
    assert torch.equal(found[found.long()], torch.arange(4096, dtype=torch.int32))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("row_bytes", [32, 64, 128, 256])  # 256: two panels
def test_tile(machine: str, row_bytes: int) -> None:
    chunks = row_bytes // 16
    found = offsets(machine, f"tile<{row_bytes}>", 16 * chunks).view(16, chunks)
    assert sorted(found.flatten().tolist()) == list(range(0, 16 * row_bytes, 16))
    # ldmatrix reads one chunk of 8 rows at once: they must lie in different groups of 4 banks,
    # of which there are 8. Rows of 64 and 32 bytes fill 2 and 4 rows into one line of banks.
    groups = found // 16 % 8
    for chunk in range(chunks):
        for first in (0, 8):
            assert len(set(groups[first : first + 8, chunk].tolist())) == 8
