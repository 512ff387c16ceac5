"""What the driver's encoder is asked, and what is refused before it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from attnhub.errors import InvalidArgument, UnknownName
from attnhub.jit.errors import DriverError
from attnhub.jit.tensor_map import TensorMap
from tests.jit.fake_driver import Fake

GOOD: dict[str, Any] = {
    "address": 0x7F00_1234_5670,
    "dtype": "bfloat16",
    "shape": (5, 300, 128),
    "strides": (2**36, 512, 2),
    "box": (1, 64, 64),
}


def test_the_driver_gets_dimensions_innermost_first(fake_cuda: Fake) -> None:
    encoded = TensorMap(**GOOD).encode()
    assert encoded == bytes(range(128))
    assert fake_cuda.journal("map") == ["map of type 9 at 7f0012345670, aligned 1"]
    assert fake_cuda.journal("  ") == [
        "  128 by 0, box 64, step 1",
        "  300 by 512, box 64, step 1",
        f"  5 by {2**36}, box 1, step 1",
        "  interleave 0, swizzle 3, promotion 2, fill 0",
    ]


@pytest.mark.parametrize(
    ("dtype", "size", "code"),
    [
        ("float16", 2, 6),
        ("float32", 4, 7),
        ("float8_e4m3fn", 1, 0),
        ("int32", 4, 3),
        ("int64", 8, 5),
    ],
)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_dtypes_and_swizzles(
    fake_cuda: Fake, dtype: str, size: int, code: int, swizzle: int
) -> None:
    row = swizzle or 64
    TensorMap(
        address=16, dtype=dtype, shape=(4, row), strides=(row * size, size),
        box=(4, row // size), swizzle=swizzle,
    ).encode()  # fmt: skip
    assert fake_cuda.journal("map") == [f"map of type {code} at 10, aligned 1"]
    mode = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    assert f"  interleave 0, swizzle {mode}, promotion 2, fill 0" in fake_cuda.journal()


def test_the_stride_of_a_single_index_is_never_used(fake_cuda: Fake) -> None:
    TensorMap(**GOOD | {"shape": (1, 300, 128), "strides": (3, 512, 2)}).encode()
    assert "  1 by 16, box 1, step 1" in fake_cuda.journal()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"shape": (2,) * 6}, "for a tensor of 6 dimensions", id="six dimensions"),
        pytest.param({"box": (64, 64)}, r"box=\(64, 64\) and strides", id="an extent too few"),
        pytest.param({"strides": (512, 2)}, r"strides=\(512, 2\) for", id="a stride too few"),
        pytest.param({"shape": (0, 300, 128)}, "every extent is 1 to", id="an empty tensor"),
        pytest.param({"shape": (2**32 + 1, 1, 128)}, "every extent is 1 to", id="too long"),
        pytest.param({"box": (257, 1, 64)}, "every extent is 1 to 256", id="a box too long"),
        pytest.param({"box": (0, 1, 64)}, "every extent is 1 to 256", id="an empty box"),
        pytest.param({"swizzle": 16}, "swizzle=16: give one of", id="no such swizzle"),
        pytest.param({"box": (1, 64, 65)}, "rows of 130 bytes: .* 16, at most", id="row too wide"),
        pytest.param({"box": (1, 64, 4)}, "rows of 8 bytes", id="a row of half a piece"),
        pytest.param({"address": 8}, "at address 0x8: the last", id="address not aligned"),
        pytest.param({"strides": (2**36, 264, 2)}, "multiples of 16", id="stride not aligned"),
        pytest.param({"strides": (2**40, 512, 2)}, r"below 2\*\*40", id="a stride too long"),
        pytest.param({"strides": (0, 512, 2)}, "strides of", id="an expanded dimension"),
        pytest.param({"strides": (2**36, 512, 4)}, "must be contiguous", id="every second element"),
    ],
)
def test_refuses(change: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        TensorMap(**GOOD | change)


def test_refuses_a_dtype_that_tma_does_not_move() -> None:
    with pytest.raises(UnknownName, match="unknown dtype of a tensor map 'complex64'"):
        TensorMap(**GOOD | {"dtype": "complex64"})


def test_what_the_driver_refuses_all_the_same(fake_cuda: Fake) -> None:
    fake_cuda.set("cuTensorMapEncodeTiled", 1)
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeTiled failed for TensorMap\(address="):
        TensorMap(**GOOD).encode()
