"""RMS and layer normalisation over the last dimension.

All functions take ``[..., hidden]`` with any strides but a contiguous last dimension, float16,
bfloat16 or float32, compute in float32, and return (or write to ``out=``) the input's dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.norm.problem import FusedAddRMSNormProblem, LayerNormProblem, RMSNormProblem


def _key(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    """Facts of the rows: ``x`` is read, ``y`` is written (or both)."""
    hidden = x.shape[-1]
    rows = x.numel() // hidden
    return x.device, x.dtype, hidden, bucket(rows), x.is_contiguous() and y.is_contiguous()


def _facts(x: Tensor, y: Tensor) -> dict[str, Any]:
    device, dtype, hidden, rows, contiguous = _key(x, y)
    return {
        "device": devices.describe(device),
        "extent": Extent(tokens=rows),
        "dtype": check.dtype_name(dtype),
        "hidden": hidden,
        "contiguous": contiguous,
    }


_rmsnorm = FunctionalOp(
    "norm.rmsnorm",
    "(Tensor x, Tensor weight, Tensor(a!) out, float eps, float weight_bias) -> ()",
    key=lambda x, weight, out, *_: _key(x, out),
    problem=lambda x, weight, out, *_: RMSNormProblem(**_facts(x, out)),
)
_fused_add_rmsnorm = FunctionalOp(
    "norm.fused_add_rmsnorm",
    "(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, float weight_bias) -> ()",
    key=lambda x, residual, *_: _key(x, residual),
    problem=lambda x, residual, *_: FusedAddRMSNormProblem(**_facts(x, residual)),
)
_layernorm = FunctionalOp(
    "norm.layernorm",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) out, float eps) -> ()",
    key=lambda x, weight, bias, out, *_: (*_key(x, out), bias is not None),
    problem=lambda x, weight, bias, out, *_: LayerNormProblem(
        **_facts(x, out), bias=bias is not None
    ),
)


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, out: Tensor | None = None) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight``.

    Args:
        x: ``[..., hidden]``.
        weight: ``[hidden]``, dtype of ``x``.
        eps: added to the mean square.
        out: ``[..., hidden]`` to write to; may be ``x`` itself.

    Returns:
        ``[..., hidden]`` in the dtype of ``x`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    Example::

        y = attnhub.norm.rmsnorm(x, weight, eps=1e-5)
    """
    return _rms(x, weight, eps, 0.0, out)


def gemma_rmsnorm(
    x: Tensor, weight: Tensor, *, eps: float = 1e-6, out: Tensor | None = None
) -> Tensor:
    """:func:`rmsnorm` with ``weight + 1``, as Gemma's checkpoints store it (added in float32)."""
    return _rms(x, weight, eps, 1.0, out)


def _rms(x: Tensor, weight: Tensor, eps: float, bias: float, out: Tensor | None) -> Tensor:
    _check_rows(x, weight)
    if out is None:
        out = torch.empty_like(x)
    else:
        check.output(out, "out", x.shape, x.dtype, x, "x")
    _rmsnorm(x, weight, out, eps, bias)
    return out


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6) -> None:
    """In place: ``residual += x``, then ``x = rmsnorm(residual) * weight``.

    The sum is formed in float32; ``x`` gets the norm of that unrounded sum, ``residual`` the sum
    rounded to its dtype. ``x`` and ``residual`` are ``[..., hidden]`` and must not overlap.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Example::

        attnhub.norm.fused_add_rmsnorm(hidden, residual, weight)   # both are updated
    """
    _check_rows(x, weight)
    _check_residual(residual, x)
    _fused_add_rmsnorm(x, residual, weight, eps, 0.0)


def gemma_fused_add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6
) -> None:
    """:func:`fused_add_rmsnorm` with ``weight + 1``."""
    _check_rows(x, weight)
    _check_residual(residual, x)
    _fused_add_rmsnorm(x, residual, weight, eps, 1.0)


def layernorm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension.

    Args:
        x: ``[..., hidden]``.
        weight: ``[hidden]``, dtype of ``x``.
        bias: ``[hidden]`` or None.
        eps: added to the (biased) variance.
        out: ``[..., hidden]`` to write to; may be ``x`` itself.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    Example::

        y = attnhub.norm.layernorm(x, weight, bias)
    """
    _check_rows(x, weight)
    if bias is not None:
        _check_vector(bias, "bias", x)
    if out is None:
        out = torch.empty_like(x)
    else:
        check.output(out, "out", x.shape, x.dtype, x, "x")
    _layernorm(x, weight, bias, out, eps)
    return out


def _check_rows(x: Tensor, weight: Tensor) -> None:
    check.is_tensor(x, "x")
    if x.dtype not in check.FLOATS:
        check.dtype(x, "x", check.FLOATS)
    if x.dim() < 1 or x.shape[-1] == 0:
        check.fail(f"x has shape {list(x.shape)}, needs [..., hidden] with hidden >= 1")
    if x.stride(-1) != 1:
        check.last_contiguous(x, "x")
    if x.requires_grad:
        check.no_grad(x)
    _check_vector(weight, "weight", x)


def _check_vector(y: Tensor, name: str, x: Tensor) -> None:
    """A factor or summand of each element of a row of ``x``."""
    check.is_tensor(y, name)
    if y.dtype != x.dtype:
        check.dtype(y, name, (x.dtype,))
    if y.shape != x.shape[-1:]:
        check.shape(y, name, (x.shape[-1],))
    if y.device != x.device:
        check.device(y, name, x.device, "x")
    if y.stride(0) != 1:
        check.last_contiguous(y, name)
    if y.requires_grad:
        check.no_grad(y)


def _check_residual(residual: Tensor, x: Tensor) -> None:
    check.output(residual, "residual", x.shape, x.dtype, x, "x")
    # Both are written; an address has no meaning while tracing.
    if not torch.compiler.is_compiling() and x.numel() and x.data_ptr() == residual.data_ptr():
        check.fail("x and residual are the same memory, but both are written; clone one of them")
