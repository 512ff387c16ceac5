"""What GpuKernel gives to a launch and takes back from it, with a launch that runs on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attnhub.plugin import KernelSpec
from attnhub.testing.emulator import Launch
from tests.emulator.specs import spec
from tests.machines import gpu

SHAPE = Launch(grid=(2, 3), block=64, smem=128, cluster=2)


@dataclass(slots=True)
class Loaded:
    """Stands for a LoadedKernel: its launches call a function."""

    spec: KernelSpec
    function: Callable[..., None]

    def launcher(self, device: int, *, block: int, smem: int, cluster: int) -> Any:
        assert (device, block, smem, cluster) == (0, SHAPE.block, SHAPE.smem, SHAPE.cluster)
        return self.function


def run(monkeypatch: pytest.MonkeyPatch, function: Callable[..., None], **values: Any) -> None:
    """Launches a kernel of ``const float* x``, ``float* y``, ``i32* words`` and ``int n``."""
    monkeypatch.setattr(gpu, "_DEVICE", "cpu")
    monkeypatch.setattr(gpu, "stream", lambda index: 5)
    loaded = Loaded(spec("primitives::shuffles"), function)
    gpu.GpuKernel(loaded).run(SHAPE, **{"words": None, "n": 7} | values)


def test_values_go_and_results_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = torch.arange(24.0).view(4, 6)
    x, y = padded[1:, 1:4], torch.zeros(3)  # strided, and not aligned to 8 bytes

    def launch(grid: tuple[int, ...], stream: int, *values: int) -> None:
        assert (grid, stream, values[2:]) == ((2, 3, 1), 5, (0, 7))
        assert values[0] % 16 == x.data_ptr() % 16
        ctypes.memmove(values[1], values[0] + 6 * 4, 3 * 4)
        ctypes.memset(values[0], 0, 4)

    run(monkeypatch, launch, x=x, y=y)
    assert torch.equal(y, x[1])
    assert x[0, 0] == 7  # const: what became of the copy is not taken back


@pytest.mark.parametrize("offset", [-1, 12])
@pytest.mark.parametrize("which", ["x", "y"])
def test_a_write_beside_a_tensor_is_found(
    monkeypatch: pytest.MonkeyPatch, which: str, offset: int
) -> None:
    def launch(grid: tuple[int, ...], stream: int, *values: int) -> None:
        ctypes.memset(values["xy".index(which)] + offset, 0, 1)

    with pytest.raises(AssertionError, match=f"writes beside {which}"):
        run(monkeypatch, launch, x=torch.zeros(3), y=torch.zeros(3))
