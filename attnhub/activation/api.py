"""Gated activations of a feed-forward layer: ``activation(gate) * up`` over the last dimension.

All functions take ``[..., 2 * hidden]``, the gate and then the up projection, with any strides but
a contiguous last dimension, float16, bfloat16 or float32; they compute in float32 and return (or
write to ``out=``) ``[..., hidden]`` in the input's dtype, or as FP8 values of a given scale.
"""

from __future__ import annotations

from typing import Any

import torch
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


def _key(x: Tensor, out: Tensor, scale: Tensor | None) -> tuple[Any, ...]:
    hidden = out.shape[-1]
    contiguous = x.is_contiguous() and out.is_contiguous()
    return x.device, x.dtype, out.dtype, hidden, bucket(out.numel() // hidden), contiguous


def _op(problem: type[GatedProblem]) -> FunctionalOp:
    def build(x: Tensor, out: Tensor, scale: Tensor | None) -> GatedProblem:
        _, dtype, out_dtype, hidden, tokens, contiguous = _key(x, out, scale)
        return problem(
            device=devices.describe(x.device),
            extent=Extent(tokens=tokens),
            dtype=check.dtype_name(dtype),
            hidden=hidden,
            contiguous=contiguous,
            out_dtype="same" if out_dtype == dtype else check.dtype_name(out_dtype),
        )

    schema = "(Tensor x, Tensor(a!) out, Tensor? scale) -> ()"
    return FunctionalOp(problem.op, schema, key=_key, problem=build)


_silu_and_mul = _op(SiluAndMulProblem)
_gelu_and_mul = _op(GeluAndMulProblem)
_gelu_tanh_and_mul = _op(GeluTanhAndMulProblem)


def silu_and_mul(
    x: Tensor,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """``silu(gate) * up`` with ``silu(z) = z / (1 + exp(-z))``.

    Args:
        x: ``[..., 2 * hidden]``, the gate and then the up projection.
        out: ``[..., hidden]`` to write to; must not overlap ``x``.
        dtype: None for the dtype of ``x``, or ``torch.float8_e4m3fn`` or ``torch.float8_e5m2`` to
            store the product over ``scale``, rounded once: see
            :func:`attnhub.quantization.quantize_fp8`, which does the same to a tensor.
        scale: float32 ``[]`` on the device of ``x``, with an FP8 ``dtype`` only.

    Returns:
        ``[..., hidden]`` in the dtype of ``x`` or in ``dtype`` (``out`` if given). In FP8, what
        exceeds the range, infinities included, saturates; NaN stays NaN.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride; a scale without an FP8 ``dtype``, or
            the other way round.

    Equivalent PyTorch::

        gate, up = x.float().chunk(2, dim=-1)
        y = (torch.nn.functional.silu(gate) * up).to(x.dtype)

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Example::

        y = attnhub.activation.silu_and_mul(gate_up)
        stored = attnhub.activation.silu_and_mul(gate_up, dtype=torch.float8_e4m3fn, scale=scale)
    """
    return _gated(_silu_and_mul, x, out, dtype, scale)


def gelu_and_mul(
    x: Tensor,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """:func:`silu_and_mul` with the exact ``gelu(z) = z * Phi(z)`` in place of silu.

    Source of the activation: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    return _gated(_gelu_and_mul, x, out, dtype, scale)


def gelu_tanh_and_mul(
    x: Tensor,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """:func:`gelu_and_mul` with the same paper's tanh approximation of gelu.

    ``gelu(z) = z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3)))``.
    """
    return _gated(_gelu_tanh_and_mul, x, out, dtype, scale)


def _gated(
    op: FunctionalOp,
    x: Tensor,
    out: Tensor | None,
    dtype: torch.dtype | None,
    scale: Tensor | None,
) -> Tensor:
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
    if dtype is not None or scale is not None:
        _check_fp8(dtype, scale, x)
    kind = dtype or x.dtype
    shape = (*x.shape[:-1], width // 2)
    if out is None:
        out = x.new_empty(shape, dtype=kind)
    else:
        check.output(out, "out", shape, kind, x, "x")
    op(x, out, scale)
    return out


def _check_fp8(dtype: torch.dtype | None, scale: Tensor | None, x: Tensor) -> None:
    if dtype is None:
        check.fail(
            "scale is given, but a result in the dtype of x has none; leave it out, or give "
            "dtype=torch.float8_e4m3fn or torch.float8_e5m2 too"
        )
    if dtype not in check.FP8:
        check.fail(
            f"dtype={dtype}: give torch.float8_e4m3fn, torch.float8_e5m2 or, for the dtype of x, "
            "None"
        )
    if scale is None:
        check.fail(f"dtype={dtype} needs scale=, float32 [], what a stored 1 stands for")
    check.is_tensor(scale, "scale")
    check.dtype(scale, "scale", (torch.float32,))
    check.shape(scale, "scale", ())
    check.device(scale, "scale", x.device, "x")
    check.no_grad(scale)
