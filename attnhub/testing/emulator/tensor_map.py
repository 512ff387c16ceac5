"""Tensor maps, which tell TMA the shape of a tensor and of the boxes to move."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torch import Tensor

from attnhub.errors import InvalidArgument

_RANKS = range(1, 6)
_SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorMap:
    """A tensor and its boxes, for a ``TensorMap`` member of a kernel's parameters.

    Args:
        tensor: 1 to 5 dimensions, the last one contiguous. The kernel gives coordinates of the
            last dimension first.
        box: the extent of a box in each dimension of the tensor, in its order.
        swizzle: bytes that the swizzle spans, 32, 64 or 128; 0 for none.
        writable: whether the kernel stores to it.

    Raises:
        InvalidArgument: what CUDA's encoder would refuse, or a driver would do slowly or wrongly.
    """

    tensor: Tensor
    box: tuple[int, ...]
    swizzle: int = 128
    writable: bool = False

    def __post_init__(self) -> None:
        tensor, size = self.tensor, self.tensor.element_size()
        if tensor.ndim not in _RANKS or len(self.box) != tensor.ndim:
            raise InvalidArgument(
                f"box={self.box} for a tensor of {tensor.ndim} dimensions: give one extent for "
                "each of 1 to 5 dimensions"
            )
        if not all(1 <= extent <= 256 for extent in self.box):
            raise InvalidArgument(f"box={self.box}: every extent is 1 to 256")
        if self.swizzle not in _SWIZZLES:
            raise InvalidArgument(f"swizzle={self.swizzle}: give one of {_SWIZZLES}")
        row = self.box[-1] * size
        if row % 16 or (self.swizzle and row > self.swizzle):
            limit = f", at most the swizzle's {self.swizzle}" if self.swizzle else ""
            raise InvalidArgument(f"a box has rows of {row} bytes: give a multiple of 16{limit}")
        strides = [stride * size for stride in tensor.stride()[:-1]]
        if tensor.stride(-1) != 1 or tensor.data_ptr() % 16 or any(s % 16 for s in strides):
            raise InvalidArgument(
                f"strides {tensor.stride()} at address {tensor.data_ptr():#x}: the last dimension "
                "must be contiguous, the others and the address multiples of 16 bytes"
            )

    def pack(self) -> bytes:
        """The bytes of ``TensorMapContent`` in abi.h, innermost dimension first."""
        tensor, size = self.tensor, self.tensor.element_size()

        def five(values: list[int]) -> list[int]:
            return [*reversed(values), *(0 for _ in range(5 - len(values)))]

        return struct.pack(
            "=Q5Q5Q5I3I",
            tensor.data_ptr(),
            *five(list(tensor.shape)),
            *five([stride * size for stride in tensor.stride()]),
            *five(list(self.box)),
            tensor.ndim,
            size,
            self.swizzle,
        ).ljust(128, b"\0")
