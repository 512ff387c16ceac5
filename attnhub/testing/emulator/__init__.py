"""Runs CUDA kernels on a CPU, thread by thread, and says what is wrong with them.

A kernel written on the wrappers of ``attnhub/ptx`` is compiled by g++ instead of nvcc and launched
with CPU tensors. docs/kernels/emulator.md tells how, what is found and what is not.
"""

from __future__ import annotations

from attnhub.testing.emulator.build import INCLUDE_DIR
from attnhub.testing.emulator.errors import (
    BuildFailed,
    EmulatorDeadlock,
    EmulatorError,
    EmulatorTimeout,
    Misuse,
    OutOfBounds,
    RaceDetected,
)
from attnhub.testing.emulator.gpu import EmulatedGpu
from attnhub.testing.emulator.kernel import EmulatedKernel, Launch
from attnhub.testing.emulator.tensor_map import TensorMap

__all__ = [
    "INCLUDE_DIR",
    "BuildFailed",
    "EmulatedGpu",
    "EmulatedKernel",
    "EmulatorDeadlock",
    "EmulatorError",
    "EmulatorTimeout",
    "Launch",
    "Misuse",
    "OutOfBounds",
    "RaceDetected",
    "TensorMap",
]
