"""Matrix products of grouped rows: segment_gemm."""

from attnhub.gemm.api import segment_gemm

__all__ = ["segment_gemm"]
