"""The one struct that a kernel takes, described in Python and filled from tensors and numbers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.testing.emulator.tensor_map import TensorMap

#: Type -> its code for ``struct``; each is aligned to its size.
_SCALARS = {
    "bool": "?",
    "int": "i",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "float": "f",
    "double": "d",
}
_DTYPES = {
    "Half": torch.float16,
    "Bf16": torch.bfloat16,
    "float": torch.float32,
    "int": torch.int32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_TAG_SHIFT = 48  # kTagShift in engine.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """The memory of one tensor parameter: ``begin <= address < end``."""

    name: str
    begin: int
    end: int
    is_writable: bool


def _buffer(name: str, tensor: Tensor, *, is_writable: bool) -> Buffer:
    """From the first to the last element that the strides reach, whatever the storage holds."""
    begin = tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = begin + (last + 1) * tensor.element_size() if tensor.numel() else begin
    return Buffer(name=name, begin=begin, end=end, is_writable=is_writable)


class ParamsLayout:
    """The members of a parameter struct, in order: ``{"x": "const Half*", "n": "int"}``.

    Scalars are bool, int, i32, u32, i64, u64, float or double. A pointer is any type and ``*``;
    the tensor given for it must have that dtype where the type names one. ``TensorMap`` takes a
    TensorMap.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = {name: kind.strip() for name, kind in fields.items()}
        #: Offset of every member, then the size of the struct, as entry.cc exports them.
        self.offsets: list[int] = []
        end, widest = 0, 1
        for name, kind in self.fields.items():
            size, alignment = _size_and_alignment(name, kind)
            begin = -(-end // alignment) * alignment
            self.offsets.append(begin)
            end, widest = begin + size, max(widest, alignment)
        self.offsets.append(-(-end // widest) * widest)

    def pack(self, values: Mapping[str, Any]) -> tuple[bytes, list[Buffer]]:
        """Fill the struct.

        Returns:
            its bytes, and the memory that the kernel may touch: that of the tensors given.

        Raises:
            InvalidArgument: a value is missing, unknown, or does not fit its field.
        """
        if values.keys() != self.fields.keys():
            wrong = sorted(values.keys() ^ self.fields.keys())
            raise InvalidArgument(f"parameters {wrong} are missing or unknown: give {self.fields}")
        packed, buffers = bytearray(self.offsets[-1]), []
        for (name, kind), offset in zip(self.fields.items(), self.offsets, strict=False):
            piece, buffer = _pack_field(name, kind, values[name])
            if buffer is not None:
                buffers.append(buffer)
                # A tag in the unused top of the pointer says which tensor it was made from.
                if kind.endswith("*"):
                    piece = struct.pack("=Q", buffer.begin | len(buffers) << _TAG_SHIFT)
            packed[offset : offset + len(piece)] = piece
        return bytes(packed), buffers


def _is_map(kind: str) -> bool:
    return kind.rsplit("::", maxsplit=1)[-1] == "TensorMap"


def _size_and_alignment(name: str, kind: str) -> tuple[int, int]:
    if _is_map(kind):
        return _MAP_BYTES, _MAP_ALIGNMENT
    if kind.endswith("*"):
        return 8, 8
    if kind not in _SCALARS:
        known = ", ".join(_SCALARS)
        raise InvalidArgument(f"field {name!r} has type {kind!r}: give a pointer or {known}")
    size = struct.calcsize(_SCALARS[kind])
    return size, size


def _pack_field(name: str, kind: str, value: Any) -> tuple[bytes, Buffer | None]:
    if _is_map(kind):
        if not isinstance(value, TensorMap):
            raise InvalidArgument(f"{name}={value!r}: {kind} takes a TensorMap")
        return value.pack(), _buffer(name, value.tensor, is_writable=value.writable)
    if kind.endswith("*"):
        if value is None:
            return bytes(8), None
        _check_tensor(name, kind, value)
        return bytes(8), _buffer(name, value, is_writable=not kind.startswith("const "))
    try:
        return struct.pack("=" + _SCALARS[kind], value), None
    except struct.error as error:
        raise InvalidArgument(f"{name}={value!r} does not fit {kind}: {error}") from error


def _check_tensor(name: str, kind: str, value: object) -> None:
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        raise InvalidArgument(f"{name}={value!r}: {kind} takes a CPU tensor or None")
    element = kind.rstrip("* ").removeprefix("const ").split("::")[-1].strip()
    wanted = _DTYPES.get(element)
    if wanted not in (None, value.dtype):
        raise InvalidArgument(f"{name} is {value.dtype}: {kind} takes {wanted}")


def aligned_copy(data: bytes) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """The bytes at an address aligned as a struct with a tensor map must be; keep the first."""
    room = ctypes.create_string_buffer(len(data) + _MAP_ALIGNMENT)
    address = -(-ctypes.addressof(room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    ctypes.memmove(address, data, len(data))
    return room, address
