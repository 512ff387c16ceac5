"""Faults that only sizes of a GPU show: more than 2^31 elements, and rows by the ten thousand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.testing.compare import assert_close

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda:0")
ROWS, HIDDEN = 70_000, 32_768  # 2.29e9 elements


@pytest.fixture
def x() -> Tensor:
    return torch.randn(ROWS, HIDDEN, dtype=torch.bfloat16, device=DEVICE)


@pytest.fixture(autouse=True)
def by_triton() -> Iterator[None]:
    with attnhub.use("triton_misc"):
        yield


def test_norms(x: Tensor) -> None:
    weight = torch.randn(HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    last = x[-3:].float()
    wanted = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    out = attnhub.norm.rmsnorm(x, weight)
    assert_close(out[-3:], wanted.bfloat16())
    del out
    residual = torch.zeros_like(x)
    attnhub.norm.fused_add_rmsnorm(x, residual, weight)
    assert_close(x[-3:], wanted.bfloat16())
    assert torch.equal(residual[-3:].float(), last)


def test_gated_activations(x: Tensor) -> None:
    out = attnhub.activation.silu_and_mul(x.view(ROWS // 2, 2 * HIDDEN))
    gate, up = x[-2].float(), x[-1].float()
    assert_close(out[-1], (torch.nn.functional.silu(gate) * up).bfloat16())


def test_rotation(x: Tensor) -> None:
    q = x.view(-1, 128, 128)
    k = q[:, :1].clone()
    positions = torch.arange(len(q), dtype=torch.int32, device=DEVICE)
    rope = attnhub.Rope(theta=5e5)
    last = q[-2:].clone()
    with attnhub.use("reference"):
        wanted, _ = attnhub.rope.apply_rope(last, k[-2:], positions[-2:], rope)
    attnhub.rope.apply_rope_(q, k, positions, rope)
    assert_close(q[-2:], wanted)


def test_quantisation(x: Tensor) -> None:
    stored, scale = attnhub.quantization.quantize_fp8(x, torch.float8_e4m3fn, axis=0)
    with attnhub.use("reference"):
        # On the CPU: on a GPU, torch multiplies by 1 / 448 instead of dividing.
        last = x[-1:].cpu()
        wanted, factor = attnhub.quantization.quantize_fp8(last, torch.float8_e4m3fn, axis=0)
    assert torch.equal(stored[-1:].cpu().view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scale[-1:].cpu(), factor)


@pytest.mark.parametrize("rows", [4096, 65536])
def test_norms_of_many_rows(rows: int) -> None:
    x = torch.randn(rows, 4096, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.randn(4096, dtype=torch.bfloat16, device=DEVICE)
    wide = x.float()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    assert_close(attnhub.norm.rmsnorm(x, weight), wanted.bfloat16())
