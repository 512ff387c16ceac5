"""What Triton asks of a driver to compile for a GPU where its own cannot be had."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

_WARP = 32


class CompilingDriver:
    """As much of a driver as Triton asks to compile for an NVIDIA GPU: its architecture.

    Args:
        sm: the architecture, 90 for ``sm_90``.
        index: of the GPU: Triton keeps what it compiles by it.
        others: what other threads than this one get instead; by default this too.
    """

    def __init__(self, sm: int, index: int = 0, others: Callable[[], Any] | None = None) -> None:
        compiler = importlib.import_module("triton.backends.compiler")
        self._target = compiler.GPUTarget("cuda", sm, _WARP)
        self._index, self._others, self._owner = index, others, threading.get_ident()

    def _theirs(self) -> Any:
        """The driver of another thread, None in this one's."""
        if self._others is None or threading.get_ident() == self._owner:
            return None
        return self._others()

    def get_current_target(self) -> Any:
        """What Triton compiles for."""
        theirs = self._theirs()
        return self._target if theirs is None else theirs.get_current_target()

    def get_current_device(self) -> Any:
        """The GPU's index."""
        theirs = self._theirs()
        return self._index if theirs is None else theirs.get_current_device()

    def get_current_stream(self, device: int) -> Any:
        """Any: nothing is launched by it."""
        theirs = self._theirs()
        return 0 if theirs is None else theirs.get_current_stream(device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._others is None:
            raise AttributeError(name)
        return getattr(self._others(), name)
