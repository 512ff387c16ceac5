"""Fills a kernel's parameter struct from tensors and numbers, and says what memory it may touch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.plugin import ParamLayout
from attnhub.testing.emulator.tensor_map import TensorMap

#: Elements of pointers that the tensor given must have.
_DTYPES = {
    "Half": torch.float16,
    "Bf16": torch.bfloat16,
    "float": torch.float32,
    "int": torch.int32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
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


def pack(layout: ParamLayout, values: Mapping[str, Any]) -> tuple[bytes, list[Buffer]]:
    """Fill the struct.

    Returns:
        its bytes, and the memory that the kernel may touch: that of the tensors given.

    Raises:
        InvalidArgument: a value is missing, unknown, or does not fit its field.
    """
    packed: list[Any] = []
    buffers: list[Buffer] = []
    for field, value in zip(layout.fields, layout.ordered(values), strict=True):
        name, kind = field.name, field.kind
        if field.is_tensor_map:
            if not isinstance(value, TensorMap):
                raise InvalidArgument(f"{name}={value!r}: {kind} takes a TensorMap")
            buffers.append(_buffer(name, value.tensor, is_writable=value.writable))
            packed.append(value.pack())
        elif field.is_pointer and value is None:
            packed.append(0)
        elif field.is_pointer:
            _check_tensor(name, kind, value)
            buffers.append(_buffer(name, value, is_writable=not kind.startswith("const ")))
            # A tag in the unused top of the pointer says which tensor it was made from.
            packed.append(buffers[-1].begin | len(buffers) << _TAG_SHIFT)
        else:
            packed.append(value)
    return layout.pack(packed), buffers


def _pointee(kind: str) -> torch.dtype | None:
    element = kind.rstrip("* ").removeprefix("const ").split("::")[-1].strip()
    return _DTYPES.get(element)


def as_pointee(memory: Tensor, kind: str) -> Tensor:
    """The same memory, as a tensor that a pointer of type ``kind`` takes."""
    wanted = _pointee(kind)
    if wanted in (None, memory.dtype):
        return memory
    if memory.dtype == torch.uint8:  # the rest of a storage
        memory = memory[: memory.numel() // wanted.itemsize * wanted.itemsize]
    return memory.view(wanted)


def _check_tensor(name: str, kind: str, value: object) -> None:
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        raise InvalidArgument(f"{name}={value!r}: {kind} takes a CPU tensor or None")
    wanted = _pointee(kind)
    if wanted not in (None, value.dtype):
        raise InvalidArgument(f"{name} is {value.dtype}: {kind} takes {wanted}")


def aligned_copy(data: bytes, alignment: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """The bytes at an aligned address; keep the first of the two."""
    room = ctypes.create_string_buffer(len(data) + alignment)
    address = -(-ctypes.addressof(room) // alignment) * alignment
    ctypes.memmove(address, data, len(data))
    return room, address
