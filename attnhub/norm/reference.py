"""What the normalisations mean: plain PyTorch, computed in float32 (float64 for float64 input).

Every statistic and product is formed in that precision and rounded once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fused_add_rmsnorm", "layernorm", "rmsnorm"]


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_bias: float = 0.0) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_bias)`` over the last axis.

    Args:
        x: ``[..., hidden]``, any strides.
        weight: ``[hidden]``.
        eps: added to the mean square, before the root.
        weight_bias: 1.0 for Gemma, whose checkpoints store ``weight - 1``. It is added in float32:
            in a 16-bit type the sum would lose most of a small weight.

    Returns:
        ``[..., hidden]`` of ``x.dtype``.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    Example:
        >>> rmsnorm(torch.tensor([3.0, 4.0]), torch.ones(2), eps=0.0)
        tensor([0.8485, 1.1314])
    """
    return _rms_normalised(_widen(x), weight, eps, weight_bias).to(x.dtype)


def fused_add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_bias: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum ``x + residual`` and its RMS norm, as ``(normed, new_residual)``.

    The sum is formed in float32. What is normalised is that *unrounded* sum; ``new_residual`` is
    the sum rounded to the residual's dtype. A fused kernel that keeps its row in registers gives
    the same; adding in a 16-bit type and then calling `rmsnorm` differs by that one rounding.

    Args:
        x: ``[..., hidden]``.
        residual: ``[..., hidden]``.
        weight: ``[hidden]``.
        eps: as in `rmsnorm`.
        weight_bias: as in `rmsnorm`.

    Returns:
        normed ``[..., hidden]`` of ``x.dtype`` and new_residual ``[..., hidden]`` of
        ``residual.dtype``.

    Example:
        >>> fused_add_rmsnorm(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 0.0]), torch.ones(2))
        (tensor([0.8485, 1.1314]), tensor([3., 4.]))
    """
    total = _widen(x) + _widen(residual)
    normed = _rms_normalised(total, weight, eps, weight_bias)
    return normed.to(x.dtype), total.to(residual.dtype)


def layernorm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    The variance is the biased one (divided by ``hidden``), taken of the centred values, which
    stays exact where ``mean(x^2) - mean(x)^2`` cancels.

    Args:
        x: ``[..., hidden]``, any strides.
        weight: ``[hidden]``.
        bias: ``[hidden]``, or None for none.
        eps: added to the variance, before the root.

    Returns:
        ``[..., hidden]`` of ``x.dtype``.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    Example:
        >>> layernorm(torch.tensor([1.0, 3.0]), torch.ones(2), eps=0.0)
        tensor([-1.,  1.])
    """
    wide = _widen(x)
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    y = centred * torch.rsqrt(variance + eps) * weight.to(wide.dtype)
    if bias is not None:
        y = y + bias.to(wide.dtype)
    return y.to(x.dtype)


def _rms_normalised(wide: Tensor, weight: Tensor, eps: float, weight_bias: float) -> Tensor:
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * inverse_rms * (weight.to(wide.dtype) + weight_bias)


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
