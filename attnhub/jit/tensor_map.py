"""Tensor maps, which tell TMA the shape of a tensor and of the boxes that it moves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnhub.errors import InvalidArgument, UnknownName
from attnhub.jit import driver
from attnhub.jit.params import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES

#: dtype -> (``CUtensorMapDataType``, bytes). Types that TMA does not know travel as integers: no
#: box changes what is in it, and zeros are zeros in all of them.
_DTYPES = {
    "bool": (0, 1),
    "uint8": (0, 1),
    "int8": (0, 1),
    "float8_e4m3fn": (0, 1),
    "float8_e5m2": (0, 1),
    "int16": (1, 2),
    "int32": (3, 4),
    "int64": (5, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_INTERLEAVE_NONE, _L2_PROMOTION_128B, _FILL_ZEROS = 0, 2, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A tensor in global memory and its boxes. What lies outside the tensor is read as zero.

    Dimensions are in the order of the tensor; a kernel gives coordinates of the last one first.

    Args:
        address: of the first element.
        dtype: of the elements, as ``"bfloat16"``.
        shape: 1 to 5 extents, the last dimension contiguous.
        strides: bytes from one index to the next in each dimension.
        box: the extent of a box in each dimension.
        swizzle: bytes that the swizzle spans, 32, 64 or 128; 0 for none.

    Raises:
        UnknownName: a dtype that TMA cannot move.
        InvalidArgument: what the driver would refuse without saying why.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise UnknownName("dtype of a tensor map", self.dtype, _DTYPES)
        rank = len(self.shape)
        if not 1 <= rank <= 5 or len(self.box) != rank or len(self.strides) != rank:
            raise InvalidArgument(
                f"box={self.box} and strides={self.strides} for a tensor of {rank} dimensions: "
                "give one of each for each of 1 to 5 dimensions"
            )
        if not all(1 <= extent <= 1 << 32 for extent in self.shape):
            raise InvalidArgument(f"shape={self.shape}: every extent is 1 to 2**32")
        self._check_box()
        self._check_strides()

    def _check_box(self) -> None:
        if not all(1 <= extent <= 256 for extent in self.box):
            raise InvalidArgument(f"box={self.box}: every extent is 1 to 256")
        if self.swizzle not in _SWIZZLES:
            raise InvalidArgument(f"swizzle={self.swizzle}: give one of {tuple(_SWIZZLES)}")
        row = self.box[-1] * self.element_size
        if row % 16 or (self.swizzle and row > self.swizzle):
            limit = f", at most the swizzle's {self.swizzle}" if self.swizzle else ""
            raise InvalidArgument(f"a box has rows of {row} bytes: give a multiple of 16{limit}")

    def _check_strides(self) -> None:
        outer = self.outer_strides
        contiguous = self.strides[-1] == self.element_size or self.shape[-1] == 1
        aligned = not any(value % 16 for value in (self.address, *outer))
        if not contiguous or not aligned or not all(0 < s < 1 << 40 for s in outer):
            raise InvalidArgument(
                f"strides of {self.strides} bytes at address {self.address:#x}: the last dimension "
                "must be contiguous, the others and the address multiples of 16 bytes, below 2**40"
            )

    @property
    def element_size(self) -> int:
        """Bytes of an element."""
        return _DTYPES[self.dtype][1]

    @property
    def outer_strides(self) -> tuple[int, ...]:
        """The strides of all dimensions but the last.

        Nothing is ever reached by the stride of a dimension of extent 1, and torch leaves any
        number there, so it is replaced by one that is allowed.
        """
        pairs = zip(self.shape[:-1], self.strides[:-1], strict=True)
        return tuple(stride if extent > 1 else 16 for extent, stride in pairs)

    def encode(self) -> bytes:
        """The 128 bytes that a kernel takes as a parameter.

        Raises:
            DriverError: there is no driver, or it knows no tensor maps.
        """
        room = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
        shift = -ctypes.addressof(room) % TENSOR_MAP_ALIGNMENT
        driver.get().call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(room, shift),
            _DTYPES[self.dtype][0],
            len(self.shape),
            ctypes.c_void_p(self.address),
            _inner_first(ctypes.c_uint64, self.shape),
            _inner_first(ctypes.c_uint64, self.outer_strides),
            _inner_first(ctypes.c_uint32, self.box),
            _inner_first(ctypes.c_uint32, (1,) * len(self.shape)),
            _INTERLEAVE_NONE,
            _SWIZZLES[self.swizzle],
            _L2_PROMOTION_128B,
            _FILL_ZEROS,
            about=str(self),
        )
        return room.raw[shift : shift + TENSOR_MAP_BYTES]


def _inner_first(kind: Any, values: Sequence[int]) -> Any:
    """An array as the driver wants it: its dimension 0 is the innermost."""
    return (kind * len(values))(*reversed(values))
