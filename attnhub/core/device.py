"""What the dispatcher knows of a device, real or named: every choice can be made on a CPU.

Bandwidths and tensor-core rates are the vendors' dense datasheet figures; cost models multiply
them by measured efficiencies.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnhub.errors import InvalidArgument, UnknownName

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Facts of one device that selection may depend on.

    ``sm`` is the compute capability as one number (90 for 9.0), None on a CPU. ``bandwidth`` is in
    GB/s, ``tflops`` the dense 16-bit tensor rate, ``fp8_tflops`` the 8-bit one (0: none). A
    ``simulated`` device was asked for by name: nothing is probed and nothing can run there.
    """

    type: str
    name: str
    index: int = 0
    sm: int | None = None
    num_sms: int = 0
    bandwidth: float = 0.0
    tflops: float = 0.0
    fp8_tflops: float = 0.0
    simulated: bool = False

    @property
    def smem_kb(self) -> int:
        """KB of shared memory of an SM.

        Of a GPU that the table does not know, and of a CPU, on which kernels are emulated, what the
        least since Ampere has. From the CUDA C++ Programming Guide, technical specifications per
        compute capability.
        """
        return _SMEM_KB.get(self.sm or 0, _LEAST_SMEM_KB)

    @property
    def smem_kept_kb(self) -> int:
        """KB of it that each CTA costs beside its own, so that none may have all."""
        return 1 if (self.sm or 0) >= _FIRST_THAT_KEEPS else 0

    @property
    def arch(self) -> str:
        """``"cpu"`` or ``"sm_90"``."""
        return self.type if self.sm is None else f"sm_{self.sm}"

    def __str__(self) -> str:
        return self.name if self.sm is None else f"{self.name} ({self.arch})"


#: By compute capability.
_SMEM_KB = {
    75: 64,
    **dict.fromkeys((80, 87), 164),
    **dict.fromkeys((86, 88, 89, 120, 121), 100),
    **dict.fromkeys((90, 100, 103), 228),
}
_LEAST_SMEM_KB, _FIRST_THAT_KEEPS = 100, 80


def _gpu(name: str, sm: int, num_sms: int, bandwidth: float, tflops: float, fp8: float) -> Device:
    return Device(
        type="cuda",
        name=name,
        sm=sm,
        num_sms=num_sms,
        bandwidth=bandwidth,
        tflops=tflops,
        fp8_tflops=fp8,
        simulated=True,
    )


CPU = Device(type="cpu", name="cpu", bandwidth=20.0, tflops=0.2)

#: Devices that ``explain`` knows by name.
KNOWN: dict[str, Device] = {
    "a10": _gpu("NVIDIA A10", 86, 72, 600, 125, 0),
    "a100": _gpu("NVIDIA A100 80GB", 80, 108, 2039, 312, 0),
    "l4": _gpu("NVIDIA L4", 89, 58, 300, 121, 242),
    "l40s": _gpu("NVIDIA L40S", 89, 142, 864, 362, 733),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", 89, 128, 1008, 165, 330),
    "h20": _gpu("NVIDIA H20", 90, 78, 4000, 148, 296),
    "h100": _gpu("NVIDIA H100 SXM", 90, 132, 3350, 989, 1979),
    "h200": _gpu("NVIDIA H200", 90, 132, 4800, 989, 1979),
    "b200": _gpu("NVIDIA B200", 100, 148, 8000, 2250, 4500),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", 120, 170, 1792, 209, 419),
    "cpu": CPU,
}

#: The device that stands for an architecture given only by its number.
_TYPICAL = {80: "a100", 86: "a10", 89: "l40s", 90: "h100", 100: "b200", 120: "rtx5090"}


@functools.cache
def named(name: str) -> Device:
    """A device by catalogue name (``"h100"``), architecture (``"sm_89"``, ``"9.0"``) or ``"cpu"``.

    Raises:
        UnknownName: nothing is known by that name; the nearest names are listed.
    """
    key = name.lower().replace(" ", "").replace("-", "")
    if key in KNOWN:
        return KNOWN[key]
    match = re.fullmatch(r"(?:sm_?)?(\d+)(?:\.(\d))?a?", key)
    if match is None:
        raise UnknownName("device", name, [*KNOWN, "sm_80", "sm_89", "sm_90", "cuda:0"])
    sm = int(match[1] + match[2]) if match[2] else int(match[1])
    if sm in _TYPICAL:
        return replace(KNOWN[_TYPICAL[sm]], name=f"typical sm_{sm}")
    nearest = max((known for known in _TYPICAL if known <= sm), default=80)
    return replace(KNOWN[_TYPICAL[nearest]], name=f"typical sm_{sm}", sm=sm)


@functools.cache
def _cuda(index: int) -> Device:
    import torch

    try:
        properties = torch.cuda.get_device_properties(index)
    except (AssertionError, RuntimeError) as error:  # torch's words do not say what to do instead
        raise InvalidArgument(
            f"cuda:{index} cannot be used: {error}; give a device that is here, or, to explain a "
            "choice for one that is not, its name ('h100')"
        ) from error
    sm = properties.major * 10 + properties.minor
    family = named(f"sm_{sm}")
    known = [d for d in KNOWN.values() if d.type == "cuda" and _same_product(d, properties.name)]
    base = max(known, key=lambda d: len(d.name)) if known else family
    return replace(
        base,
        name=properties.name,
        index=index,
        sm=sm,
        num_sms=properties.multi_processor_count,
        simulated=False,
    )


def _same_product(device: Device, product: str) -> bool:
    model = device.name.removeprefix("NVIDIA ").split(" ")[-1 if "RTX" in device.name else 0]
    return re.search(rf"\b{re.escape(model)}\b", product) is not None


def describe(device: str | torch.device | Device) -> Device:
    """The :class:`Device` behind a torch device, a device string or a catalogue name.

    ``"cuda"`` without an index is refused: tensors decide the device, never a current one.
    """
    if isinstance(device, Device):
        return device
    if not isinstance(device, str):
        return _of_torch(device.type, device.index)
    kind, _, index = device.partition(":")
    if kind in ("cuda", "cpu") and (index.isdigit() or not index):
        return _of_torch(kind, int(index) if index else None)
    return named(device)


def _of_torch(kind: str, index: int | None) -> Device:
    if kind == "cpu":
        return CPU
    if kind != "cuda":
        raise InvalidArgument(f"device type {kind!r} is not served; use a cpu or a cuda device")
    if index is None:
        raise InvalidArgument(
            "device 'cuda' has no index; give one ('cuda:0'), so that no current device is assumed"
        )
    return _cuda(index)
