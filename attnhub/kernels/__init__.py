"""The host side of ``attnhub/include``: loading kernels beside torch, and what plans share."""

from __future__ import annotations

from attnhub.kernels.load import INCLUDE_DIR, arch, kernel, kernels, stream, tensor_map

__all__ = ["INCLUDE_DIR", "arch", "kernel", "kernels", "stream", "tensor_map"]
