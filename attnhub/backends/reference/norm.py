"""``attnhub.norm`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.reference import Reference
from attnhub.norm import reference


def _rmsnorm(x: Tensor, weight: Tensor, out: Tensor, eps: float, weight_bias: float) -> None:
    out.copy_(reference.rmsnorm(x, weight, eps=eps, weight_bias=weight_bias))


def _fused_add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_bias: float
) -> None:
    normed, total = reference.fused_add_rmsnorm(
        x, residual, weight, eps=eps, weight_bias=weight_bias
    )
    x.copy_(normed)
    residual.copy_(total)


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, eps: float) -> None:
    out.copy_(reference.layernorm(x, weight, bias, eps=eps))


rmsnorm = Reference(_rmsnorm)
fused_add_rmsnorm = Reference(_fused_add_rmsnorm)
layernorm = Reference(_layernorm)
