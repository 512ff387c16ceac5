"""Host-to-device copies of metadata that neither synchronise nor overwrite what is in flight."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class Staging:
    """A ring of pinned buffers for one CUDA device; a buffer returns once its copy has finished.

    Two plans in a row behind a long-running kernel therefore use two buffers: the second never
    overwrites metadata that the first is still waiting to upload.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._busy: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Enqueue ``destination.copy_(source)`` on the current stream without waiting."""
        if source.device.type != "cpu" or self._device.type == "cpu":
            destination.copy_(source, non_blocking=True)
            return
        pinned = self._buffer(source.nbytes)[: source.nbytes].view(source.dtype).view_as(source)
        pinned.copy_(source)
        destination.copy_(pinned, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._busy.append((event, pinned))

    def _buffer(self, nbytes: int) -> Tensor:
        if self._busy and self._busy[0][0].query():
            storage = self._busy.popleft()[1].untyped_storage()
            if storage.nbytes() >= nbytes:
                return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        size = max(4096, 1 << (nbytes - 1).bit_length()) if nbytes else 4096
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
