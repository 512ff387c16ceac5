"""What the gated activations mean: plain PyTorch, computed in float32 (float64 for float64 input).

All take ``[..., 2 * hidden]``: the first half is the gate, which passes through the activation,
the second half is multiplied by it. The product is formed wide and rounded once.

Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument

__all__ = ["gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(gate) * up`` with ``silu(z) = z / (1 + exp(-z))``; ``[..., 2H]`` to ``[..., H]``.

    Raises:
        InvalidArgument: the last axis is odd.

    Example:
        >>> silu_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """
    return _gated(x, torch.nn.functional.silu)


def gelu_and_mul(x: Tensor) -> Tensor:
    """``gelu(gate) * up`` with the exact ``gelu(z) = z * Phi(z)``; ``[..., 2H]`` to ``[..., H]``.

    Source of the activation: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).

    Raises:
        InvalidArgument: the last axis is odd.

    Example:
        >>> gelu_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """
    return _gated(x, torch.nn.functional.gelu)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """`gelu_and_mul` with the same paper's tanh approximation of gelu.

    ``gelu(z) = z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3)))``; ``[..., 2H]`` to ``[..., H]``.

    Raises:
        InvalidArgument: the last axis is odd.

    Example:
        >>> gelu_tanh_and_mul(torch.tensor([1.0, 2.0]))
        tensor([1.6824])
    """
    return _gated(x, partial(torch.nn.functional.gelu, approximate="tanh"))


def _gated(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    if x.shape[-1] % 2:
        raise InvalidArgument(
            f"last axis of x is {x.shape[-1]}, but it must hold the gate and then the up "
            "projection, of equal size; concatenate the two along the last axis"
        )
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (activation(gate) * up).to(x.dtype)
