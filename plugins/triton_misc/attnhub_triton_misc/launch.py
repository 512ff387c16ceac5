"""How a kernel is launched: on the device of its tensors, whichever is current."""

from __future__ import annotations

from typing import Any

import torch

Grid = tuple[int] | tuple[int, int] | tuple[int, int, int]


def launch(kernel: Any, grid: Grid, device: torch.device, *args: Any, **options: Any) -> None:
    """Launch ``kernel`` on ``device``; a grid without a program launches nothing.

    Triton launches on the current device. Options are compile-time arguments, and those of Triton:
    ``num_warps``, ``num_stages``.
    """
    if 0 in grid:
        return
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[grid](*args, **options)
    else:
        kernel[grid](*args, **options)


def cdiv(size: int, step: int) -> int:
    """``size / step``, rounded up; triton.cdiv, made for kernels, takes a microsecond for it."""
    return -(-size // step)
