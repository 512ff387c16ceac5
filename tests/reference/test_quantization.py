"""Bit packing against Python integers, FP8 against a list of every number the format has."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnhub.errors import InvalidArgument
from attnhub.quantization import reference
from attnhub.quantization.reference import BitOrder

ORDERS = st.sampled_from(["little", "big"])
BITS = st.lists(st.booleans(), max_size=40)


def boolean(values: list[bool]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def packed_by_hand(bits: list[bool], bitorder: str) -> list[int]:
    out = []
    for start in range(0, len(bits), 8):
        byte = "".join(str(int(bit)) for bit in bits[start : start + 8]).ljust(8, "0")
        out.append(int(byte if bitorder == "big" else byte[::-1], 2))
    return out


@given(bits=BITS, bitorder=ORDERS)
def test_packbits_and_back(bits: list[bool], bitorder: BitOrder) -> None:
    packed = reference.packbits(boolean(bits), bitorder=bitorder)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == packed_by_hand(bits, bitorder)
    assert reference.unpackbits(packed, len(bits), bitorder=bitorder).tolist() == bits


def test_default_order_is_little() -> None:
    first_only = boolean([True] + [False] * 8)
    assert reference.packbits(first_only).tolist() == [1, 0]
    assert reference.packbits(first_only, bitorder="big").tolist() == [128, 0]
    assert reference.unpackbits(torch.tensor([1], dtype=torch.uint8), 2).tolist() == [True, False]
    assert reference.segment_packbits(first_only, torch.tensor([0, 9]))[0].tolist() == [1, 0]


def test_packbits_flattens_row_major_at_any_stride() -> None:
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) > 0.5
    bits = [bool(mask[i, j]) for j in range(7) for i in range(5)]
    assert reference.packbits(mask.T).tolist() == packed_by_hand(bits, "little")


@given(segments=st.lists(BITS, max_size=5), bitorder=ORDERS)
def test_segments_start_at_bytes(segments: list[list[bool]], bitorder: BitOrder) -> None:
    flat = [bit for segment in segments for bit in segment]
    indptr = torch.tensor([0, *map(len, segments)]).cumsum(0).to(torch.int32)
    packed, byte_indptr = reference.segment_packbits(boolean(flat), indptr, bitorder=bitorder)
    assert packed.dtype == torch.uint8
    assert byte_indptr.dtype == torch.int32
    expected = [packed_by_hand(segment, bitorder) for segment in segments]
    assert packed.tolist() == [byte for segment in expected for byte in segment]
    bounds = byte_indptr.tolist()
    assert [e - s for s, e in itertools.pairwise(bounds)] == [*map(len, expected)]


def test_bad_bits_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"torch\.uint8; give bool"):
        reference.packbits(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(InvalidArgument, match="bitorder='middle'"):
        reference.packbits(boolean([True]), bitorder="middle")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="3 elements, but the segments end at 2"):
        reference.segment_packbits(boolean([True] * 3), torch.tensor([0, 2]))
    with pytest.raises(InvalidArgument, match="cannot take 9 bits out of 1 elements"):
        reference.unpackbits(torch.zeros(1, dtype=torch.uint8), 9)


# --- FP8 ------------------------------------------------------------------------------------------

FORMATS = [
    pytest.param(torch.float8_e4m3fn, 4, 3, id="e4m3"),
    pytest.param(torch.float8_e5m2, 5, 2, id="e5m2"),
]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def numbers(exponent_bits: int, mantissa_bits: int) -> list[float]:
    """Every finite value of the format, from its definition, ascending."""
    bias = 2 ** (exponent_bits - 1) - 1
    out = set()
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            # E4M3 gives up one code for NaN, E5M2 the whole last exponent for NaN and infinity.
            last = exponent == 2**exponent_bits - 1
            if last and (exponent_bits == 5 or mantissa == 2**mantissa_bits - 1):
                continue
            fraction = mantissa / 2**mantissa_bits
            scale = 2.0 ** (max(exponent, 1) - bias)
            value = scale * (fraction + (exponent > 0))
            out |= {value, -value}
    return sorted(out)


def nearest(value: float, among: list[float]) -> float:
    return min(among, key=lambda candidate: abs(candidate - value))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("dtype", "exponent_bits", "mantissa_bits"), FORMATS)
def test_stored_is_the_nearest_number(
    dtype: torch.dtype, exponent_bits: int, mantissa_bits: int
) -> None:
    grid = numbers(exponent_bits, mantissa_bits)
    x = normal(300) * 3.0
    stored, scale = reference.quantize(x, dtype)
    assert stored.dtype == dtype
    assert scale.dtype == torch.float32
    assert scale.shape == ()
    assert scale.item() == pytest.approx(float(x.abs().max()) / grid[-1], rel=1e-7)
    for value, kept in zip(x.tolist(), stored.float().tolist(), strict=True):
        exact = value / scale.item()
        assert kept in grid
        # At a tie both neighbours are nearest; float32 division may decide which.
        best = abs(nearest(exact, grid) - exact)
        assert abs(kept - exact) <= best + 1e-6 * abs(exact)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize(
    "shape_axis",
    [
        pytest.param(((6, 3, 5), None), id="per-tensor"),
        pytest.param(((6, 3, 5), 0), id="per-token"),
        pytest.param(((6, 3, 5), 1), id="per-head"),
        pytest.param(((6, 3, 5), -2), id="per-head-from-the-end"),
        pytest.param(((9,), 0), id="per-element"),
    ],
)
def test_each_scope_has_its_own_scale(
    dtype: torch.dtype, shape_axis: tuple[tuple[int, ...], int | None]
) -> None:
    shape, axis = shape_axis
    x = normal(*shape) * torch.logspace(-2, 2, shape[-1])
    stored, scale = reference.quantize(x, dtype, axis=axis)
    limit = torch.finfo(dtype).max
    parts = [x] if axis is None else x.unbind(axis)
    expected = torch.tensor([float(part.abs().max()) / limit for part in parts])
    torch.testing.assert_close(scale.reshape(-1), expected, rtol=1e-6, atol=0)
    assert scale.shape == (() if axis is None else (shape[axis],))
    back = reference.dequantize(stored, scale, axis=axis)
    half_step = float(torch.finfo(dtype).eps) / 2
    kept = [back] if axis is None else back.unbind(axis)
    for part, again, size in zip(parts, kept, expected.tolist(), strict=True):
        smallest = float(torch.finfo(dtype).smallest_normal) * size
        error = (again - part).abs()
        assert bool((error <= half_step * part.abs().clamp(min=smallest) * (1 + 1e-5)).all())


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_zero_has_scale_one(dtype: torch.dtype) -> None:
    x = torch.zeros(4, 2, 3)
    x[:, 1] = 7.0
    stored, scale = reference.quantize(x, dtype, axis=1)
    assert scale.tolist() == [1.0, pytest.approx(7.0 / torch.finfo(dtype).max)]
    assert stored[:, 0].float().abs().sum() == 0
    assert reference.quantize(torch.zeros(3), dtype)[1].item() == 1.0


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("value", [449.0, 1e6, 3e38, math.inf], ids=["449", "1e6", "3e38", "inf"])
def test_a_given_scale_saturates(dtype: torch.dtype, value: float) -> None:
    scale = torch.tensor(2.0**-10)
    stored, used = reference.quantize(torch.tensor([value, -value, 0.0]), dtype, scale=scale)
    limit = torch.finfo(dtype).max
    assert used is scale
    assert stored.float().tolist() == [limit, -limit, 0.0]


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_non_finite_values_do_not_spoil_the_scale(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, -math.inf, 2.0, 1.0])
    stored, scale = reference.quantize(x, dtype)
    limit = torch.finfo(dtype).max
    assert scale.item() == pytest.approx(2.0 / limit, rel=1e-7)
    assert stored.float().isnan().tolist() == [True, False, False, False]
    assert stored[1:3].float().tolist() == [-limit, limit]


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1e-45, id="1e-45-smallest-subnormal"),
        pytest.param(1e-37, id="1e-37-scale-would-be-subnormal"),
        pytest.param(3.4028234e38, id="3.4e38-largest"),
    ],
)
def test_extreme_magnitudes_stay_finite(dtype: torch.dtype, size: float) -> None:
    stored, scale = reference.quantize(torch.tensor([size, -size]), dtype)
    back = reference.dequantize(stored, scale, dtype=torch.float64)
    assert scale.item() > 0
    assert back.isfinite().all()
    # The scale stops at the smallest normal float32, so that small data use less of FP8's range:
    # half a step is relative, or that of FP8's own subnormal numbers.
    step = torch.finfo(dtype).eps * max(size, torch.finfo(dtype).smallest_normal * scale.item())
    assert abs(back[0].item() - size) <= step / 2


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("source", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_source_and_result_dtypes(dtype: torch.dtype, source: torch.dtype) -> None:
    x = normal(5, 4).to(source)
    stored, scale = reference.quantize(x, dtype)
    assert scale.dtype == torch.float32
    wide, wide_scale = reference.quantize(x.double(), dtype)
    assert torch.equal(stored.float(), wide.float())
    assert scale == wide_scale
    back = reference.dequantize(stored, scale, dtype=source)
    assert back.dtype == source
    exact = stored.double() * scale.double()
    torch.testing.assert_close(back.double(), exact, rtol=torch.finfo(source).eps, atol=1e-30)


@pytest.mark.parametrize(
    ("shape", "axis", "scales"),
    [
        pytest.param((0, 3), None, [1.0], id="tensor"),
        pytest.param((0, 3), 0, [], id="no-row"),
        pytest.param((0, 3), 1, [1.0, 1.0, 1.0], id="rows-without-elements"),
    ],
)
def test_empty_input(shape: tuple[int, ...], axis: int | None, scales: list[float]) -> None:
    stored, scale = reference.quantize(torch.empty(shape), torch.float8_e4m3fn, axis=axis)
    assert stored.shape == shape
    assert scale.reshape(-1).tolist() == scales
    assert reference.dequantize(stored, scale, axis=axis).shape == shape


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"dtype=torch\.int8: give one of torch\.float8"):
        reference.quantize(torch.ones(2), torch.int8)
    with pytest.raises(InvalidArgument, match=r"scale has shape \[2\]; with axis=None.*give \[\]"):
        reference.quantize(torch.ones(2), torch.float8_e5m2, scale=torch.ones(2))
    stored, scale = reference.quantize(torch.ones(2, 3), torch.float8_e5m2, axis=1)
    with pytest.raises(InvalidArgument, match=r"scale has shape \[3\]; with axis=0.*give \[2\]"):
        reference.dequantize(stored, scale, axis=0)
