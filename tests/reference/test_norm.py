"""The normalisations against sums written out in Python floats."""

from __future__ import annotations

import math

import pytest
import torch

from attnhub.norm import reference
from attnhub.testing.compare import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
HIDDEN = [
    pytest.param(1, id="1-one-element"),
    pytest.param(111, id="111-odd"),
    pytest.param(500, id="500-no-multiple-of-8"),
    pytest.param(512, id="512-power-of-two"),
]


def rms_by_hand(row: list[float], weight: list[float], eps: float) -> list[float]:
    rms = math.sqrt(math.fsum(v * v for v in row) / len(row) + eps)
    return [v / rms * w for v, w in zip(row, weight, strict=True)]


def layer_by_hand(
    row: list[float], weight: list[float], bias: list[float], eps: float
) -> list[float]:
    mean = math.fsum(row) / len(row)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in row) / len(row) + eps)
    return [(v - mean) / deviation * w + b for v, w, b in zip(row, weight, bias, strict=True)]


def rows_f64(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("weight_bias", [0.0, 1.0], ids=["plain", "gemma"])
def test_rmsnorm_is_the_formula(hidden: int, dtype: torch.dtype, weight_bias: float) -> None:
    x, weight = normal(3, hidden, dtype=dtype), normal(hidden, dtype=dtype, seed=1)
    effective = [w + weight_bias for w in weight.tolist()]
    expected = rows_f64([rms_by_hand(row, effective, 1e-5) for row in x.tolist()])
    y = reference.rmsnorm(x, weight, eps=1e-5, weight_bias=weight_bias)
    assert y.dtype == dtype
    assert_close(y, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_results_are_rounded_once(dtype: torch.dtype) -> None:
    x, weight = normal(4, 111, dtype=dtype), normal(111, dtype=dtype, seed=1)
    bias = normal(111, dtype=dtype, seed=2)
    wide = (x.float(), weight.float())
    rms, layer = reference.rmsnorm(*wide).to(dtype), reference.layernorm(*wide, bias.float())
    torch.testing.assert_close(reference.rmsnorm(x, weight), rms, rtol=0, atol=0)
    torch.testing.assert_close(
        reference.layernorm(x, weight, bias), layer.to(dtype), rtol=0, atol=0
    )


def test_gemma_bias_is_added_in_float32() -> None:
    # In the weight's own bfloat16 the sum 1 + 2^-10 would be 1.
    weight = torch.tensor([2.0**-10], dtype=torch.bfloat16)
    y = reference.rmsnorm(torch.tensor([1.0]), weight, eps=0.0, weight_bias=1.0)
    assert y.item() == 1.0 + 2.0**-10


def test_a_zero_row_gives_zero() -> None:
    y = reference.rmsnorm(torch.zeros(2, 7), torch.ones(7))
    assert torch.equal(y, torch.zeros(2, 7))


def test_float16_squares_do_not_overflow() -> None:
    x = torch.full((1, 8), 60000.0, dtype=torch.float16)
    assert torch.equal(reference.rmsnorm(x, torch.ones(8).half()), torch.ones(1, 8).half())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("weight_bias", [0.0, 1.0], ids=["plain", "gemma"])
def test_fused_add_norms_the_unrounded_sum(
    hidden: int, dtype: torch.dtype, weight_bias: float
) -> None:
    x, residual = normal(3, hidden, dtype=dtype), normal(3, hidden, dtype=dtype, seed=1)
    weight = normal(hidden, dtype=dtype, seed=2)
    total = x.double() + residual.double()
    effective = [w + weight_bias for w in weight.tolist()]
    expected = rows_f64([rms_by_hand(row, effective, 1e-6) for row in total.tolist()])
    normed, new_residual = reference.fused_add_rmsnorm(x, residual, weight, weight_bias=weight_bias)
    assert_close(normed, expected)
    assert_close(new_residual, total)
    assert normed.dtype == new_residual.dtype == dtype


def test_fused_add_rounding_order() -> None:
    # 256 + 1 is no bfloat16: rounded first, both elements would be equal and both norms 1.
    x = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    residual = torch.tensor([256.0, 256.0], dtype=torch.bfloat16)
    weight = torch.tensor([1.0, 1.0], dtype=torch.float32)
    normed, new_residual = reference.fused_add_rmsnorm(x.float(), residual, weight, eps=0.0)
    assert new_residual.tolist() == [256.0, 256.0]
    assert new_residual.dtype == torch.bfloat16
    assert normed[0].item() / normed[1].item() == pytest.approx(257 / 256, rel=1e-6)


def test_fused_add_leaves_its_inputs_alone() -> None:
    x, residual = normal(2, 5, dtype=torch.float32), normal(2, 5, dtype=torch.float32, seed=1)
    before = x.clone(), residual.clone()
    reference.fused_add_rmsnorm(x, residual, torch.ones(5))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no-bias"])
def test_layernorm_is_the_formula(hidden: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = normal(3, hidden, dtype=dtype), normal(hidden, dtype=dtype, seed=1)
    bias = normal(hidden, dtype=dtype, seed=2) if has_bias else None
    shift = [0.0] * hidden if bias is None else bias.tolist()
    expected = rows_f64([layer_by_hand(row, weight.tolist(), shift, 1e-5) for row in x.tolist()])
    assert_close(reference.layernorm(x, weight, bias, eps=1e-5), expected)


def test_layernorm_survives_a_large_mean() -> None:
    x = torch.tensor([[4096.0, 4097.0, 4098.0]])
    expected = rows_f64([layer_by_hand(x[0].tolist(), [1.0] * 3, [0.0] * 3, 1e-5)])
    assert_close(reference.layernorm(x, torch.ones(3)), expected)


def test_layernorm_takes_float32_parameters_for_bfloat16_rows() -> None:
    x = normal(2, 9, dtype=torch.bfloat16)
    weight, bias = normal(9, dtype=torch.float32, seed=1), normal(9, dtype=torch.float32, seed=2)
    y = reference.layernorm(x, weight, bias)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, reference.layernorm(x.float(), weight, bias).bfloat16())


def test_strides_do_not_matter() -> None:
    base = normal(6, 40, 2, dtype=torch.float32)
    weight = normal(40, 2, dtype=torch.float32, seed=1)[:, 1]
    x = base[::2, :, 0]
    assert not x.is_contiguous()
    expected = reference.rmsnorm(x.contiguous(), weight.contiguous())
    torch.testing.assert_close(reference.rmsnorm(x, weight), expected)
    expected = reference.layernorm(x.contiguous(), weight.contiguous())
    torch.testing.assert_close(reference.layernorm(x, weight), expected)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,), (2, 3, 4, 8)], ids=str)
def test_any_number_of_leading_axes(shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape, dtype=torch.float32), normal(8, dtype=torch.float32, seed=1)
    rows = x.reshape(-1, 8).tolist()
    expected = rows_f64([rms_by_hand(row, weight.tolist(), 1e-6) for row in rows]).reshape(shape)
    assert_close(reference.rmsnorm(x, weight), expected)
    normed, new_residual = reference.fused_add_rmsnorm(x, torch.zeros_like(x), weight)
    assert_close(normed, expected)
    assert torch.equal(new_residual, x)
    assert reference.layernorm(x, weight).shape == shape
