"""Gated activations of a feed-forward layer: ``activation(gate) * up`` over the last dimension.

All functions take ``[..., 2 * hidden]``, the gate and then the up projection, with any strides but
a contiguous last dimension, float16, bfloat16 or float32; they compute in float32 and return (or
write to ``out=``) ``[..., hidden]`` in the input's dtype.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnhub.activation.problem import (
    GatedProblem,
    GeluAndMulProblem,
    GeluTanhAndMulProblem,
    SiluAndMulProblem,
)
from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket


def _key(x: Tensor, out: Tensor) -> tuple[Any, ...]:
    hidden = out.shape[-1]
    contiguous = x.is_contiguous() and out.is_contiguous()
    return x.device, x.dtype, hidden, bucket(out.numel() // hidden), contiguous


def _op(problem: type[GatedProblem]) -> FunctionalOp:
    def build(x: Tensor, out: Tensor) -> GatedProblem:
        _, dtype, hidden, tokens, contiguous = _key(x, out)
        return problem(
            device=devices.describe(x.device),
            extent=Extent(tokens=tokens),
            dtype=check.dtype_name(dtype),
            hidden=hidden,
            contiguous=contiguous,
        )

    return FunctionalOp(problem.op, "(Tensor x, Tensor(a!) out) -> ()", key=_key, problem=build)


_silu_and_mul = _op(SiluAndMulProblem)
_gelu_and_mul = _op(GeluAndMulProblem)
_gelu_tanh_and_mul = _op(GeluTanhAndMulProblem)


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` with ``silu(z) = z / (1 + exp(-z))``.

    Args:
        x: ``[..., 2 * hidden]``, the gate and then the up projection.
        out: ``[..., hidden]`` to write to; must not overlap ``x``.

    Returns:
        ``[..., hidden]`` in the dtype of ``x`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Equivalent PyTorch::

        gate, up = x.float().chunk(2, dim=-1)
        y = (torch.nn.functional.silu(gate) * up).to(x.dtype)

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Example::

        y = attnhub.activation.silu_and_mul(gate_up)
    """
    return _gated(_silu_and_mul, x, out)


def gelu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """:func:`silu_and_mul` with the exact ``gelu(z) = z * Phi(z)`` in place of silu.

    Source of the activation: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    return _gated(_gelu_and_mul, x, out)


def gelu_tanh_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """:func:`gelu_and_mul` with the same paper's tanh approximation of gelu.

    ``gelu(z) = z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3)))``.
    """
    return _gated(_gelu_tanh_and_mul, x, out)


def _gated(op: FunctionalOp, x: Tensor, out: Tensor | None) -> Tensor:
    check.is_tensor(x, "x")
    if x.dtype not in check.FLOATS:
        check.dtype(x, "x", check.FLOATS)
    width = x.shape[-1] if x.dim() else 0
    if width == 0 or width % 2:
        check.fail(
            f"x has shape {list(x.shape)}, needs [..., 2 * hidden] with hidden >= 1; "
            "concatenate the gate and the up projection along the last dimension"
        )
    check.last_contiguous(x, "x")
    check.no_grad(x)
    shape = (*x.shape[:-1], width // 2)
    if out is None:
        out = x.new_empty(shape)
    else:
        check.output(out, "out", shape, x.dtype, x, "x")
    op(x, out)
    return out
