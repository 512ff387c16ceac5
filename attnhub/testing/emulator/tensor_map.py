"""Tensor maps of CPU tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from attnhub import plugin


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
        self._described()

    def _described(self) -> plugin.TensorMap:
        """What a launch on a GPU would encode; making it checks the rules of TMA."""
        return plugin.tensor_map(self.tensor, self.box, swizzle=self.swizzle)

    def pack(self) -> bytes:
        """The bytes of ``TensorMapContent`` in abi.h, innermost dimension first."""
        described = self._described()

        def five(values: Sequence[int]) -> list[int]:
            return [*reversed(values), *(0 for _ in range(5 - len(values)))]

        return struct.pack(
            "=Q5Q5Q5I3I",
            described.address,
            *five(described.shape),
            *five((*described.outer_strides, described.element_size)),
            *five(described.box),
            len(described.shape),
            described.element_size,
            described.swizzle,
        ).ljust(128, b"\0")
