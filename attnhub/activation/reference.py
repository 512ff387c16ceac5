"""What the gated activations mean: plain PyTorch, computed in float32 (float64 for float64 input).

All take ``[..., 2 * hidden]``: the first half is the gate, which passes through the activation,
the second half is multiplied by it. The product is formed wide and rounded once: to the dtype of
the input or, over a scale, to an FP8 ``dtype`` as `attnhub.quantization.reference.quantize` does.

Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.quantization.reference import quantize

__all__ = ["gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]


def silu_and_mul(
    x: Tensor, *, dtype: torch.dtype | None = None, scale: Tensor | None = None
) -> Tensor:
    """``silu(gate) * up`` with ``silu(z) = z / (1 + exp(-z))``; ``[..., 2H]`` to ``[..., H]``.

    Args:
        x: ``[..., 2H]``.
        dtype: FP8, or None for that of x.
        scale: float32 ``[]``; what is stored as FP8 is the product over it.

    Raises:
        InvalidArgument: the last axis is odd, or dtype is none of the above.

    Example:
        >>> silu_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """
    return _gated(x, torch.nn.functional.silu, dtype, scale)


def gelu_and_mul(
    x: Tensor, *, dtype: torch.dtype | None = None, scale: Tensor | None = None
) -> Tensor:
    """``gelu(gate) * up`` with the exact ``gelu(z) = z * Phi(z)``; ``[..., 2H]`` to ``[..., H]``.

    Source of the activation: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).

    Raises:
        InvalidArgument: the last axis is odd.

    Example:
        >>> gelu_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """
    return _gated(x, torch.nn.functional.gelu, dtype, scale)


def gelu_tanh_and_mul(
    x: Tensor, *, dtype: torch.dtype | None = None, scale: Tensor | None = None
) -> Tensor:
    """`gelu_and_mul` with the same paper's tanh approximation of gelu.

    ``gelu(z) = z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3)))``; ``[..., 2H]`` to ``[..., H]``.

    Raises:
        InvalidArgument: the last axis is odd.

    Example:
        >>> gelu_tanh_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.6824])
    """
    return _gated(x, partial(torch.nn.functional.gelu, approximate="tanh"), dtype, scale)


def _gated(
    x: Tensor,
    activation: Callable[[Tensor], Tensor],
    dtype: torch.dtype | None,
    scale: Tensor | None,
) -> Tensor:
    if x.shape[-1] % 2:
        raise InvalidArgument(
            f"last axis of x is {x.shape[-1]}, but it must hold the gate and then the up "
            "projection, of equal size; concatenate the two along the last axis"
        )
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    product = activation(gate) * up
    return product.to(x.dtype) if dtype is None else quantize(product, dtype, scale=scale)[0]
