"""Host-to-device copies of metadata that neither synchronise nor overwrite what is in flight."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Bytes of a slab, which has room for the uploads of many steps, and what parts are aligned to.
_SLAB_BYTES, _ALIGNMENT = 1 << 16, 16


class _Slab(NamedTuple):
    """Pinned memory, and the stream of the copies that read it."""

    pinned: Tensor
    stream: torch.cuda.Stream


class Staging:
    """Pinned memory for uploads to one CUDA device.

    An upload takes the next part of a slab. A full slab is used again once all copies that read it
    have finished, so a plan behind a long-running kernel never overwrites metadata that an earlier
    one is still waiting to upload; and an event, which costs as much as the copy, is recorded for a
    slab and not for each upload.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._busy: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._slab: _Slab | None = None
        self._used = 0

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Enqueue ``destination.copy_(source)`` on the current stream without waiting."""
        if source.device.type != "cpu" or self._device.type == "cpu":
            destination.copy_(source, non_blocking=True)
            return
        part = self._part(source.nbytes).view(source.dtype).view_as(source)
        part.copy_(source)
        destination.copy_(part, non_blocking=True)

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
            block = self._part(up.nbytes).view(kind)
            torch.cat(parts, out=block)
            up.copy_(block, non_blocking=True)
        return torch.split_with_sizes(up, sizes)

    def _part(self, nbytes: int) -> Tensor:
        """Pinned bytes that no copy reads."""
        slab, begin = self._slab, self._used
        end = begin + nbytes
        if slab is not None and not self._is_current(slab):
            # Its stream may be gone. torch keeps the memory until the copies are through.
            slab = self._slab = None
        if slab is None or end > slab.pinned.numel():
            slab, begin, end = self._next(nbytes), 0, nbytes
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return slab.pinned[begin:end]

    def _is_current(self, slab: _Slab) -> bool:
        index = self._device.index
        raw: int = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 - a Stream costs more
        return slab.stream.cuda_stream == raw

    def _next(self, nbytes: int) -> _Slab:
        """Another slab, of at least so many bytes, in place of the one in use."""
        if self._slab is not None and not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event()
            event.record(self._slab.stream)
            self._busy.append((event, self._slab.pinned))
        pinned = None
        if self._busy and self._busy[0][0].query():
            pinned = self._busy.popleft()[1]
        if pinned is None or pinned.numel() < nbytes:
            size = max(_SLAB_BYTES, 1 << (nbytes - 1).bit_length())
            pinned = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._slab = _Slab(pinned, torch.cuda.current_stream(self._device))
        return self._slab
