"""The frequencies of a rotation on the device, where the kernels of all plans read them."""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from attnhub.plugin import Device, InvalidArgument, Rope, Staging, inverse_frequencies, stream


class Frequencies:
    """Radians per position of each pair, float32 on a device, and the factor on cos and sin."""

    def __init__(self, rope: Rope, rotary_dim: int, device: torch.device) -> None:
        host, self.factor = inverse_frequencies(rotary_dim, rope.theta, rope.scaling, device="cpu")
        self._staging = Staging(device)
        self._table = self._staging.on_device(host)
        self._sent: torch.cuda.Event | None = None
        self._readers: set[int] = set()
        if device.type == "cuda":
            self._sent = torch.cuda.Event()
            self._sent.record(torch.cuda.current_stream(device))

    def table(self) -> Tensor:
        """The frequencies; the current stream reads them after they have arrived."""
        sent = self._sent  # read once: another thread may find meanwhile that they have arrived
        if sent is not None:
            self._order_after_copy(sent)
        if self._table.is_cuda:
            self._keep_for_current_stream()
        return self._table

    def _order_after_copy(self, sent: torch.cuda.Event) -> None:
        # Of a stream under capture nothing can be asked; what was planned before has arrived, since
        # a capture begins by waiting for the device.
        if torch.cuda.is_current_stream_capturing():
            return
        if sent.query():
            self._sent = None
        else:
            sent.wait(torch.cuda.current_stream(self._table.device))

    def _keep_for_current_stream(self) -> None:
        # Once freed, the memory goes to the stream that it was made on, which would not wait for
        # what others still read of it; torch remembers each reader until then, so once will do.
        reader = stream(self._table.get_device())
        if reader not in self._readers:
            self._table.record_stream(torch.cuda.current_stream(self._table.device))
            self._readers.add(reader)


class KnownFrequencies:
    """One :class:`Frequencies` for each rotation and device, as long as a plan has it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[Rope, int, str, int], Frequencies] = (
            WeakValueDictionary()
        )

    def of(self, rope: Rope, rotary_dim: int, device: Device) -> Frequencies:
        """The frequencies there, sent without waiting if no plan has them.

        Raises:
            InvalidArgument: nobody has them and a graph is being captured, which would hold the
                copy instead of making it.
        """
        key = (rope, rotary_dim, device.type, device.index)
        found = self._known.get(key)
        if found is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise InvalidArgument(
                    f"{rope} is new to {device}, and a CUDA graph is being captured; call "
                    "apply_rope with it once before"
                )
            place = "cpu" if device.type == "cpu" else f"{device.type}:{device.index}"
            found = self._known[key] = Frequencies(rope, rotary_dim, torch.device(place))
        return found
