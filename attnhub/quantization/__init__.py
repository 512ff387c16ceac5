"""Bit packing of masks, and FP8 quantisation."""

from attnhub.quantization.bits import packbits, segment_packbits, unpackbits
from attnhub.quantization.fp8 import dequantize_fp8, quantize_fp8

__all__ = ["dequantize_fp8", "packbits", "quantize_fp8", "segment_packbits", "unpackbits"]
