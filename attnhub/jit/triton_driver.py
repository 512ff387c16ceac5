"""What Triton asks of a driver to compile for a GPU where its own cannot be had."""

from __future__ import annotations

import importlib
from typing import Any

_WARP = 32


class CompilingDriver:
    """As much of a driver as Triton asks to compile for an NVIDIA GPU: its architecture."""

    def __init__(self, sm: int) -> None:
        compiler = importlib.import_module("triton.backends.compiler")
        self._target = compiler.GPUTarget("cuda", sm, _WARP)

    def get_current_target(self) -> Any:
        """What Triton compiles for."""
        return self._target

    def get_current_device(self) -> int:
        """Any: nothing is launched by it."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Any."""
        return 0
