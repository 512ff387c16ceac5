"""``attnhub.quantization`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.reference import Reference
from attnhub.quantization import reference
from attnhub.quantization.reference import BitOrder


def _packbits(x: Tensor, out: Tensor, bitorder: BitOrder) -> None:
    out.copy_(reference.packbits(x, bitorder=bitorder))


def _unpackbits(packed: Tensor, out: Tensor, bitorder: BitOrder) -> None:
    out.copy_(reference.unpackbits(packed, out.numel(), bitorder=bitorder))


def _segment_packbits(
    x: Tensor, indptr: Tensor, out: Tensor, byte_indptr: Tensor, bitorder: BitOrder
) -> None:
    packed, starts = reference.segment_packbits(
        x, indptr, bitorder=bitorder, total_bytes=out.numel()
    )
    out.copy_(packed)
    byte_indptr.copy_(starts)


def _quantize_fp8(
    x: Tensor, scale: Tensor | None, out: Tensor, scale_out: Tensor | None, axis: int | None
) -> None:
    stored, used = reference.quantize(x, out.dtype, axis=axis, scale=scale)
    out.copy_(stored)
    if scale_out is not None:
        scale_out.copy_(used)


def _dequantize_fp8(stored: Tensor, scale: Tensor, out: Tensor, axis: int | None) -> None:
    out.copy_(reference.dequantize(stored, scale, axis=axis, dtype=out.dtype))


packbits = Reference(_packbits)
unpackbits = Reference(_unpackbits)
segment_packbits = Reference(_segment_packbits)
quantize_fp8 = Reference(_quantize_fp8)
dequantize_fp8 = Reference(_dequantize_fp8)
