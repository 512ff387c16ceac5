"""Devices as the command line takes them."""

from __future__ import annotations

from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.errors import InvalidArgument


def described(name: str) -> Device:
    """The device called ``name``: of this machine, or any by name; ``""`` is the default one.

    The default is the first GPU of this machine, else the CPU.

    Raises:
        UnknownName: nothing is known by that name.
        InvalidArgument: a CUDA device that this machine does not have.
    """
    import torch

    count = torch.cuda.device_count()
    if not name:
        name = "cuda:0" if count else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cuda" and index.isdigit() and int(index) >= count:
        raise InvalidArgument(
            f"device {name!r}: this machine has {count} CUDA devices; "
            "explain also takes any device by name, as in --device h100"
        )
    return devices.describe(name)


def present(name: str) -> Device:
    """As :func:`described`, for measuring: the device must be here.

    Raises:
        InvalidArgument: a device given by a catalogue name.
    """
    device = described(name)
    if device.simulated:
        raise InvalidArgument(
            f"device {name!r} is known by name only; to measure, use 'cpu' or 'cuda:N'"
        )
    return device


def torch_name(device: Device) -> str:
    """``"cpu"`` or ``"cuda:0"``."""
    return device.type if device.type == "cpu" else f"{device.type}:{device.index}"
