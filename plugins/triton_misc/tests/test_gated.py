"""The gated activations where conformance does not reach: all gates, odd tiles, FP8 at its ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnhub import activation
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub_triton_misc.settings import SMALL_STREAM, STREAM

Function = Callable[..., Tensor]


def silu(z: Tensor) -> Tensor:
    return z / (1 + (-z).exp())


def gelu(z: Tensor) -> Tensor:
    return z * 0.5 * torch.special.erfc(-z / math.sqrt(2))


def gelu_tanh(z: Tensor) -> Tensor:
    return z / (1 + (-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)).exp())


OPS = pytest.mark.parametrize(
    ("function", "formula"),
    [
        pytest.param(activation.silu_and_mul, silu, id="silu"),
        pytest.param(activation.gelu_and_mul, gelu, id="gelu"),
        pytest.param(activation.gelu_tanh_and_mul, gelu_tanh, id="gelu_tanh"),
    ],
)


@OPS
def test_every_gate_to_float32_precision(
    function: Function, formula: Function, device: torch.device
) -> None:
    """Closer than the tolerance table asks: an approximation must not show behind float32."""
    gate = torch.linspace(-20, 20, 6001, device=device)
    y = function(torch.cat([gate, torch.ones_like(gate)]))
    exact = formula(gate.double())
    assert ((y - exact).abs() <= 5e-7 * (1 + exact.abs())).all()


@OPS
def test_gates_beyond_all_bounds(
    function: Function, formula: Function, device: torch.device
) -> None:
    gate = torch.tensor([0.0, 90.0, 3e38, math.inf, math.nan, -90.0, -3e38], device=device)
    y = function(torch.cat([gate, torch.ones_like(gate)]))
    assert y[:4].tolist() == gate[:4].tolist()
    assert y[4].isnan()
    assert y[5:].abs().tolist() == [0.0, 0.0]


@OPS
@pytest.mark.parametrize(
    ("rows", "hidden"),
    [
        pytest.param(1, 3 * SMALL_STREAM.block + 5, id="small-tiles-the-last-in-part"),
        pytest.param(9, STREAM.block + 5, id="large-tiles-the-last-in-part"),
        pytest.param(150, 111, id="rows-share-tiles-the-last-in-part"),
    ],
)
def test_tiles_that_reach_over_the_end(
    function: Function, formula: Function, rows: int, hidden: int, device: torch.device
) -> None:
    x = torch.randn(rows, 2 * hidden, generator=seeded(0)).to(device)
    whole = torch.full((rows + 1, hidden + 8), math.nan, device=device)
    function(x, out=whole[:rows, :hidden])
    gate, up = x.double().chunk(2, -1)
    assert_close(whole[:rows, :hidden], formula(gate) * up)
    assert whole[rows].isnan().all()
    assert whole[:, hidden:].isnan().all()


@OPS
@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_saturates_and_keeps_nan(
    function: Function, formula: Function, fp8: torch.dtype, device: torch.device
) -> None:
    up = torch.tensor([1e6, -1e6, math.inf, -math.inf, math.nan, 0.0, 2.0**-30], device=device)
    x = torch.cat([torch.full_like(up, 20.0), up])
    stored = function(x, dtype=fp8, scale=torch.tensor(0.5, device=device)).float()
    limit = torch.finfo(fp8).max
    assert stored[:4].tolist() == [limit, -limit, limit, -limit]
    assert stored[4].isnan()
    assert stored[5:].tolist() == [0.0, 0.0]
