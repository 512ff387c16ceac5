"""FP8 values and the scales that give the original back: ``value = stored * scale``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.quantization.problem import DequantizeFp8Problem, QuantizeFp8Problem

Axis = int | None


def _scope(axis: Axis, ndim: int) -> str:
    if axis is None:
        return "tensor"
    if axis == 0:
        return "first"
    return "last" if axis == ndim - 1 else "middle"


def _sides_key(wide: Tensor, stored: Tensor, axis: Axis) -> tuple[Any, ...]:
    hidden = wide.shape[-1]
    return (
        wide.device,
        wide.dtype,
        stored.dtype,
        hidden,
        bucket(wide.numel() // hidden if hidden else 0),
        _scope(axis, wide.dim()),
        wide.is_contiguous() and stored.is_contiguous(),
    )


def _facts(wide: Tensor, stored: Tensor, axis: Axis) -> dict[str, Any]:
    device, dtype, fp8, hidden, rows, scope, contiguous = _sides_key(wide, stored, axis)
    return {
        "device": devices.describe(device),
        "extent": Extent(tokens=rows),
        "dtype": check.dtype_name(dtype),
        "fp8": check.dtype_name(fp8),
        "hidden": hidden,
        "scope": scope,
        "contiguous": contiguous,
    }


_quantize_fp8 = FunctionalOp(
    "quantization.quantize_fp8",
    "(Tensor x, Tensor? scale, Tensor(a!) out, Tensor(b!)? scale_out, int? axis) -> ()",
    key=lambda x, scale, out, scale_out, axis: (*_sides_key(x, out, axis), scale is None),
    problem=lambda x, scale, out, scale_out, axis: QuantizeFp8Problem(
        **_facts(x, out, axis), given_scale=scale is not None
    ),
)
_dequantize_fp8 = FunctionalOp(
    "quantization.dequantize_fp8",
    "(Tensor stored, Tensor scale, Tensor(a!) out, int? axis) -> ()",
    key=lambda stored, scale, out, axis: _sides_key(out, stored, axis),
    problem=lambda stored, scale, out, axis: DequantizeFp8Problem(**_facts(out, stored, axis)),
)


def quantize_fp8(
    x: Tensor,
    dtype: torch.dtype,
    *,
    axis: int | None = None,
    scale: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """FP8 values and their scales: ``x`` is about ``stored * scale``.

    Args:
        x: ``[..., n]``, float16, bfloat16 or float32; any strides, last dimension contiguous.
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        axis: None for one scale per tensor, or the axis along which each index has its own: in
            ``[tokens, heads, dim]``, 0 is per token and 1 is per head.
        scale: float32 scale to use, ``[]`` or ``[x.shape[axis]]``. If None, one is made to fit: the
            largest finite magnitude becomes the largest FP8 number (all zero: the scale is 1).
        out: FP8, shaped as ``x``, to write to.

    Returns:
        stored values of ``dtype``, shaped as ``x`` (``out`` if given), and the float32 scale
        (``scale`` if given). What exceeds the range, infinities included, saturates; NaN stays NaN
        and does not touch the scale.

    Raises:
        InvalidArgument: wrong shape, dtype, device, stride or axis.

    Equivalent PyTorch, for one fitting scale::

        limit = torch.finfo(dtype).max
        scale = x.abs().max().float() / limit
        stored = (x.float() / scale).clamp(-limit, limit).to(dtype)

    Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).

    Example::

        stored, scale = attnhub.quantization.quantize_fp8(k, torch.float8_e4m3fn, axis=1)
    """
    check.is_tensor(x, "x")
    if x.dtype not in check.FLOATS:
        check.dtype(x, "x", check.FLOATS)
    if dtype not in check.FP8:
        check.fail(f"dtype={dtype}: give torch.float8_e4m3fn or torch.float8_e5m2")
    axis = _check_layout(x, "x", axis)
    if scale is not None:
        _check_scale(scale, x, "x", axis)
    if out is None:
        out = torch.empty_like(x, dtype=dtype)
    else:
        check.output(out, "out", x.shape, dtype, x, "x")
    if scale is None:
        scale_out = x.new_empty(() if axis is None else (x.shape[axis],), dtype=torch.float32)
        _quantize_fp8(x, None, out, scale_out, axis)
        return out, scale_out
    _quantize_fp8(x, scale, out, None, axis)
    return out, scale


def dequantize_fp8(
    stored: Tensor,
    scale: Tensor,
    *,
    axis: int | None = None,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """``stored * scale``, the inverse of :func:`quantize_fp8` up to rounding.

    Args:
        stored: FP8 ``[..., n]``; any strides, last dimension contiguous.
        scale: float32 ``[]`` or ``[stored.shape[axis]]``.
        axis: as in :func:`quantize_fp8`.
        dtype: of the result: float16, bfloat16 or float32. The product is formed in float32.
        out: shaped as ``stored``, of ``dtype``, to write to.

    Returns:
        ``stored * scale``, shaped as ``stored`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device, stride or axis.

    Example::

        k = attnhub.quantization.dequantize_fp8(stored, scale, axis=1, dtype=torch.bfloat16)
    """
    check.is_tensor(stored, "stored")
    if stored.dtype not in check.FP8:
        check.dtype(stored, "stored", check.FP8)
    if dtype not in check.FLOATS:
        check.fail(f"dtype={dtype}: give torch.float16, torch.bfloat16 or torch.float32")
    axis = _check_layout(stored, "stored", axis)
    _check_scale(scale, stored, "stored", axis)
    if out is None:
        out = torch.empty_like(stored, dtype=dtype)
    else:
        check.output(out, "out", stored.shape, dtype, stored, "stored")
    _dequantize_fp8(stored, scale, out, axis)
    return out


def _check_layout(x: Tensor, name: str, axis: Axis) -> Axis:
    """Check shape, stride and grad, and return the axis counted from the front."""
    ndim = x.dim()
    if not ndim:
        check.fail(f"{name} has shape [], needs [..., n]; call {name}.reshape(1)")
    check.last_contiguous(x, name)
    check.no_grad(x)
    if axis is None:
        return None
    if not isinstance(axis, int) or isinstance(axis, bool) or not -ndim <= axis < ndim:
        check.fail(f"axis={axis}, but {name} has shape {list(x.shape)}; give {-ndim} to {ndim - 1}")
    return axis % ndim


def _check_scale(scale: Tensor, x: Tensor, name: str, axis: Axis) -> None:
    check.is_tensor(scale, "scale")
    if scale.dtype != torch.float32:
        check.dtype(scale, "scale", (torch.float32,))
    expected = () if axis is None else (x.shape[axis],)
    if scale.shape != expected:
        check.fail(
            f"scale has shape {list(scale.shape)}; with axis={axis} and {name} of shape "
            f"{list(x.shape)} it needs {list(expected)}"
        )
    check.device(scale, "scale", x.device, name)
    check.last_contiguous(scale, "scale")
    check.no_grad(scale)
