"""What bit packing and FP8 quantisation mean: plain PyTorch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument

__all__ = ["dequantize", "packbits", "quantize", "segment_packbits", "unpackbits"]

BitOrder = Literal["little", "big"]

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def packbits(x: Tensor, *, bitorder: BitOrder = "little") -> Tensor:
    """Eight booleans per byte, row-major; the last byte is filled up with zeros.

    Args:
        x: bool, any shape; packed as if flattened.
        bitorder: "little" puts the first boolean into bit 0, "big" into bit 7.

    Returns:
        uint8 ``[ceil(x.numel() / 8)]``.

    Raises:
        InvalidArgument: x is not bool, or the bit order unknown.

    Example:
        >>> packbits(torch.tensor([True, False, True]))
        tensor([5], dtype=torch.uint8)
    """
    _check_bool(x)
    bits = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % 8)).reshape(-1, 8)
    place = torch.bitwise_left_shift(1, _shifts(bitorder, x.device))
    return (bits * place).sum(dim=1).to(torch.uint8)


def unpackbits(packed: Tensor, count: int, *, bitorder: BitOrder = "little") -> Tensor:
    """The first ``count`` booleans of `packbits`' result.

    Args:
        packed: uint8 ``[bytes]``.
        count: how many booleans; at most ``8 * bytes``.
        bitorder: as in `packbits`.

    Returns:
        bool ``[count]``.

    Raises:
        InvalidArgument: packed is not uint8 or holds fewer bits, or the bit order is unknown.

    Example:
        >>> unpackbits(torch.tensor([5], dtype=torch.uint8), 3)
        tensor([ True, False,  True])
    """
    if packed.dtype != torch.uint8 or not 0 <= count <= 8 * packed.numel():
        raise InvalidArgument(
            f"cannot take {count} bits out of {packed.numel()} elements of {packed.dtype}; give "
            "uint8, and at most 8 times as many bits as bytes"
        )
    bits = torch.bitwise_right_shift(packed[:, None].int(), _shifts(bitorder, packed.device)) & 1
    return bits.flatten()[:count].bool()


def segment_packbits(
    x: Tensor, indptr: Tensor, *, bitorder: BitOrder = "little", total_bytes: int | None = None
) -> tuple[Tensor, Tensor]:
    """`packbits` of each segment by itself, so that every one starts at a byte.

    Args:
        x: bool ``[indptr[-1]]``, the segments one after another.
        indptr: int32 ``[segments + 1]``, where each starts, in elements.
        bitorder: as in `packbits`.
        total_bytes: size of the result, so that no value of indptr need be looked at: bytes past
            the last segment are 0, what does not fit is dropped. None: exactly what is needed.

    Returns:
        uint8 ``[bytes]`` and, of indptr's dtype, ``[segments + 1]``: where each starts, in bytes.

    Raises:
        InvalidArgument: x is not bool, the bit order unknown or, without total_bytes, x is not as
            long as indptr says.

    Example:
        >>> segment_packbits(torch.ones(4, dtype=torch.bool), torch.tensor([0, 1, 4]))
        (tensor([1, 7], dtype=torch.uint8), tensor([0, 1, 2]))
    """
    _check_bool(x)
    byte_indptr = torch.zeros_like(indptr)
    byte_indptr[1:] = torch.div(indptr.diff() + 7, 8, rounding_mode="floor").cumsum(0)
    if total_bytes is None:
        if x.numel() != int(indptr[-1]):
            raise InvalidArgument(
                f"x has {x.numel()} elements, but the segments end at {int(indptr[-1])}; indptr "
                "must cover x exactly"
            )
        total_bytes = int(byte_indptr[-1])
    if indptr.numel() == 1:
        return torch.zeros(total_bytes, dtype=torch.uint8, device=x.device), byte_indptr
    starts, byte_starts = indptr.long(), byte_indptr.long()
    byte = torch.arange(total_bytes, device=x.device)
    # The last segment that starts at or before the byte; empty ones start where the next does.
    segment = torch.searchsorted(byte_starts[1:], byte, right=True).clamp(max=indptr.numel() - 2)
    first = starts[segment] + 8 * (byte - byte_starts[segment])
    source = first[:, None] + torch.arange(8, device=x.device)
    # Bits past the end of a segment are read from one False behind x.
    source = torch.where(source < starts[segment + 1][:, None], source, x.numel())
    bits = torch.nn.functional.pad(x.flatten(), (0, 1))[source.clamp(max=x.numel())]
    return packbits(bits, bitorder=bitorder), byte_indptr


def quantize(
    x: Tensor, dtype: torch.dtype, *, axis: int | None = None, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """FP8 values and the scales that give ``x`` back: ``value = stored * scale``.

    Args:
        x: floating point, any shape, for example ``[tokens, heads, dim]``.
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        axis: None for one scale per tensor, or the axis along which each index has its own: in
            ``[tokens, heads, dim]``, 0 is per token and 1 is per head.
        scale: float32 scale to use, 0-d or ``[x.shape[axis]]``. If None, the largest finite
            magnitude becomes the largest FP8 number; where all is zero the scale is 1.

    Returns:
        stored values, shaped as x, and the float32 scale. What exceeds the range, infinities
        included, saturates; NaN stays NaN and does not touch the scale.

    Raises:
        InvalidArgument: dtype is no FP8 type above, or a scale of another shape.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).

    Example:
        >>> quantize(torch.tensor([224.0, -1.0]), torch.float8_e4m3fn)
        (tensor([448.,  -2.], dtype=torch.float8_e4m3fn), tensor(0.5000))
    """
    if dtype not in _FP8:
        raise InvalidArgument(f"dtype={dtype}: give one of {', '.join(map(str, _FP8))}")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    limit = torch.finfo(dtype).max
    if scale is None:
        scale = _fitting_scale(wide, limit, axis)
    stored = (wide / _along(scale, wide.ndim, axis, wide.shape)).clamp(-limit, limit)
    return stored.to(dtype), scale


def dequantize(
    stored: Tensor, scale: Tensor, *, axis: int | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``stored * scale``, the inverse of `quantize` up to rounding.

    Args:
        stored: FP8, any shape.
        scale: float32, 0-d or ``[stored.shape[axis]]``.
        axis: as in `quantize`.
        dtype: of the result; the product is formed in float32 (float64 if asked for).

    Raises:
        InvalidArgument: a scale of another shape.

    Example:
        >>> dequantize(*quantize(torch.tensor([224.0, -1.0]), torch.float8_e4m3fn))
        tensor([224.,  -1.])
    """
    wide = torch.promote_types(dtype, torch.float32)
    product = stored.to(wide) * _along(scale, stored.ndim, axis, stored.shape).to(wide)
    return product.to(dtype)


def _fitting_scale(wide: Tensor, limit: float, axis: int | None) -> Tensor:
    magnitude = torch.where(wide.isfinite(), wide.abs(), 0.0)
    rows = magnitude[None] if axis is None else magnitude.movedim(axis, 0)
    # The column of zeros defines the maximum of a row that has no element.
    largest = torch.nn.functional.pad(rows[..., None].flatten(1), (0, 1)).amax(dim=1)
    # A magnitude below limit * tiny would make the scale subnormal, and on some devices zero.
    fitting = (largest / limit).to(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.where(largest == 0, 1.0, fitting)
    return scale[0] if axis is None else scale


def _along(scale: Tensor, ndim: int, axis: int | None, shape: torch.Size) -> Tensor:
    """``scale`` shaped to broadcast along ``axis``."""
    expected = [] if axis is None else [shape[axis]]
    if list(scale.shape) != expected:
        raise InvalidArgument(
            f"scale has shape {list(scale.shape)}; with axis={axis} and data of shape "
            f"{list(shape)} give {expected}"
        )
    if axis is None:
        return scale
    view = [1] * ndim
    view[axis] = -1
    return scale.reshape(view)


def _shifts(bitorder: str, device: torch.device) -> Tensor:
    if bitorder not in ("little", "big"):
        raise InvalidArgument(f"bitorder={bitorder!r}; give 'little' or 'big'")
    little = torch.arange(8, dtype=torch.int32, device=device)
    return little if bitorder == "little" else little.flip(0)


def _check_bool(x: Tensor) -> None:
    if x.dtype != torch.bool:
        raise InvalidArgument(f"x is {x.dtype}; give bool, for example x != 0")
