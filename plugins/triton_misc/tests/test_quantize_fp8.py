"""FP8 bit for bit as the reference has it, also where the conformance suite does not reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.quantization import dequantize_fp8, quantize_fp8
from attnhub_triton_misc import quantize_fp8 as module

DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
Axis = int | None


def drawn(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Magnitudes over the range of FP8 and beyond, with infinities and NaN."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    x = torch.randn(shape, generator=generator)
    x *= torch.logspace(-6, 2, shape[-1])[torch.randperm(shape[-1], generator=generator)]
    some, special = x.view(-1)[::97], torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    some.copy_(special[torch.arange(len(some)) % len(special)])
    return x.to(device)


def check(x: Tensor, dtype: torch.dtype, axis: Axis, scale: Tensor | None = None) -> None:
    """Values and scales, and the values times the scales; NaN may have any sign."""
    found, found_scale = quantize_fp8(x, dtype, axis=axis, scale=scale)
    given = None if scale is None else scale.cpu()
    with attnhub.use("reference"):
        # On the CPU: on a GPU, torch multiplies by 1 / 448 instead of dividing.
        expected, expected_scale = quantize_fp8(x.cpu(), dtype, axis=axis, scale=given)
        wide = dequantize_fp8(expected, expected_scale, axis=axis)
    assert torch.equal(found_scale.cpu(), expected_scale)
    codes, expected_codes = (y.cpu().contiguous().view(torch.uint8) for y in (found, expected))
    isnan = x.cpu().isnan()
    assert torch.equal(found.float().cpu().isnan(), isnan)
    assert torch.equal(codes[~isnan], expected_codes[~isnan])
    again = dequantize_fp8(found, found_scale, axis=axis)
    assert torch.equal(again.cpu()[~isnan], wide[~isnan])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param((3, 9000), None, id="rows longer than a tile, in shares"),
        pytest.param((20000,), None, id="one row"),
        pytest.param((40, 3, 100), 0, id="a whole index in a tile, of rows of an odd length"),
        pytest.param((2, 3, 6000), 0, id="an index too large for a tile"),
        pytest.param((40, 3, 100), 1, id="an index of many rows"),
        pytest.param((200, 150), 1, id="columns in shares"),
        pytest.param((77,), 0, id="a scale each"),
    ],
)
def test_every_way_to_fit(
    shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, device: torch.device
) -> None:
    check(drawn(shape, device), dtype, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0])
def test_by_the_instruction(
    axis: Axis, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":  # a GPU uses what it has
        monkeypatch.setattr(module, "has_casts", lambda _: True)
    check(drawn((3, 2000), device), dtype, axis)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, 4])
def test_strides_that_need_several_launches(axis: Axis, device: torch.device) -> None:
    # Axes swapped: no two of the leading four lie as one, so rows come in six parts at least.
    x = drawn((2, 3, 2, 2, 40), device).permute(3, 1, 0, 2, 4)
    check(x, torch.float8_e4m3fn, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "largest",
    [
        pytest.param(0.0, id="all zero: the scale is 1"),
        pytest.param(1e-42, id="subnormal: the scale is the smallest normal number"),
        pytest.param(3e38, id="nearly infinite"),
    ],
)
def test_extreme_magnitudes(largest: float, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.linspace(-1, 1, 129, device=device)[None] * largest
    check(x, dtype, None)
    check(x, dtype, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-40, -3.0, 1e30, math.inf, math.nan])
def test_any_scale_divides(scale: float, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([[0.0, 1.0, -3e38, 1e-38, 5e30]], device=device)
    found, _ = quantize_fp8(x, dtype, scale=torch.tensor(scale, device=device))
    limit = torch.finfo(dtype).max
    expected = (x.cpu() / scale).clamp(-limit, limit).to(dtype).float()
    torch.testing.assert_close(found.float().cpu(), expected, rtol=0, atol=0, equal_nan=True)
