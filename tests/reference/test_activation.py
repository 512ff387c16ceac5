"""The gated activations against the math module, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from attnhub.activation import reference
from attnhub.errors import InvalidArgument
from attnhub.testing.compare import assert_close


def silu(z: float) -> float:
    return z / (1.0 + math.exp(-z))


def gelu(z: float) -> float:
    return z * 0.5 * math.erfc(-z / math.sqrt(2.0))


def gelu_tanh(z: float) -> float:
    return z * 0.5 * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))


Gated = Callable[[torch.Tensor], torch.Tensor]
OPS = [
    pytest.param(reference.silu_and_mul, silu, id="silu"),
    pytest.param(reference.gelu_and_mul, gelu, id="gelu"),
    pytest.param(reference.gelu_tanh_and_mul, gelu_tanh, id="gelu_tanh"),
]


def by_hand(x: torch.Tensor, activation: Callable[[float], float]) -> torch.Tensor:
    half = x.shape[-1] // 2
    rows = [
        [activation(gate) * up for gate, up in zip(row[:half], row[half:], strict=True)]
        for row in x.reshape(-1, 2 * half).tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(*x.shape[:-1], half)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("op", "activation"), OPS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(1, id="1-one-element"),
        pytest.param(111, id="111-odd"),
        pytest.param(500, id="500-no-multiple-of-8"),
    ],
)
def test_is_the_formula(
    op: Gated, activation: Callable[[float], float], dtype: torch.dtype, hidden: int
) -> None:
    x = normal(3, 2 * hidden, dtype=dtype)
    y = op(x)
    assert y.dtype == dtype
    assert_close(y, by_hand(x, activation))


@pytest.mark.parametrize(("op", "activation"), OPS)
def test_gate_over_its_whole_range(op: Gated, activation: Callable[[float], float]) -> None:
    gate = torch.linspace(-30.0, 30.0, 241)
    x = torch.cat([gate, torch.ones_like(gate)])
    assert_close(op(x), by_hand(x, activation))


@pytest.mark.parametrize(("op", "activation"), OPS)
def test_first_half_is_the_gate(op: Gated, activation: Callable[[float], float]) -> None:
    assert op(torch.tensor([0.0, 5.0])).item() == 0.0
    assert op(torch.tensor([5.0, 2.0])).item() == pytest.approx(2 * activation(5.0), rel=1e-6)


@pytest.mark.parametrize(("op", "activation"), OPS)
def test_bfloat16_is_rounded_once(op: Gated, activation: Callable[[float], float]) -> None:
    x = normal(50, 22, dtype=torch.bfloat16)
    assert torch.equal(op(x), op(x.float()).bfloat16())
    half_ulp = 2.0**-8
    torch.testing.assert_close(
        op(x).double(), by_hand(x, activation), rtol=1.01 * half_ulp, atol=1e-6
    )


@pytest.mark.parametrize(("op", "activation"), OPS)
def test_fp8_is_rounded_once(op: Callable[..., torch.Tensor], activation: object) -> None:
    x, scale = normal(50, 22, dtype=torch.bfloat16), torch.tensor(0.25)
    stored = op(x, dtype=torch.float8_e4m3fn, scale=scale)
    assert torch.equal(stored.float(), (op(x.float()) / scale).to(torch.float8_e4m3fn).float())
    twice = (op(x) / scale).to(torch.float8_e4m3fn)
    assert not torch.equal(stored.float(), twice.float())


@pytest.mark.parametrize(("op", "activation"), OPS)
def test_any_shape_and_stride(op: Gated, activation: Callable[[float], float]) -> None:
    x = normal(4, 10, 6, dtype=torch.float32).transpose(1, 2)[::2]
    assert not x.is_contiguous()
    assert_close(op(x), by_hand(x, activation))
    assert op(torch.empty(0, 8)).shape == (0, 4)
    assert op(torch.empty(3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    "op", [reference.silu_and_mul, reference.gelu_and_mul, reference.gelu_tanh_and_mul]
)
def test_odd_axis_is_refused(op: Gated) -> None:
    with pytest.raises(InvalidArgument, match=r"last axis of x is 7.*concatenate"):
        op(torch.zeros(2, 7))
