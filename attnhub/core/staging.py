"""Host-to-device copies of metadata that neither synchronise nor overwrite what is in flight."""

from __future__ import annotations

from collections import deque
from typing import Any

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
        event, pinned = self._buffer(source.nbytes)
        part = pinned[: source.nbytes].view(source.dtype).view_as(source)
        part.copy_(source)
        self._send(destination, part, event, pinned)

    def on_device(self, x: Tensor) -> Tensor:
        """The tensor itself if it lies there, else a copy, enqueued without waiting."""
        if x.device == self._device:
            return x
        up = torch.empty(x.shape, dtype=x.dtype, device=self._device)
        self.copy(up, x)
        return up

    def all_on_device(self, *given: Tensor | None) -> list[Any]:
        """Each of ``given`` there, of one dtype and one dimension; None stays None.

        What lies on the host goes up as one copy.
        """
        away = [x for x in given if x is not None and x.device != self._device]
        if not away:
            return list(given)
        parts = iter(self.upload(*away))
        return [x if x is None or x.device == self._device else next(parts) for x in given]

    def upload(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Enqueue one copy of tensors of one dtype and one dimension; they are views of it."""
        sizes = [part.numel() for part in parts]
        kind = parts[0].dtype
        up = torch.empty(sum(sizes), dtype=kind, device=self._device)
        if self._device.type == "cpu":
            torch.cat(parts, out=up)
        else:
            event, pinned = self._buffer(up.nbytes)
            block = pinned[: up.nbytes].view(kind)
            torch.cat(parts, out=block)
            self._send(up, block, event, pinned)
        return torch.split(up, sizes)

    def _send(self, to: Tensor, block: Tensor, event: torch.cuda.Event, pinned: Tensor) -> None:
        to.copy_(block, non_blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        self._busy.append((event, pinned))

    def _buffer(self, nbytes: int) -> tuple[torch.cuda.Event, Tensor]:
        """Pinned bytes that no copy reads, at least so many, and the event that says so again."""
        if self._busy and self._busy[0][0].query():
            event, pinned = self._busy.popleft()
            if pinned.numel() >= nbytes:
                return event, pinned
        size = max(4096, 1 << (nbytes - 1).bit_length()) if nbytes else 4096
        pinned = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        return torch.cuda.Event(), pinned
