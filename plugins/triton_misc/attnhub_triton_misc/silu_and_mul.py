"""The product of silu and the up projection."""

from __future__ import annotations

import triton
import triton.language as tl

from attnhub_triton_misc.gated import Gated, reciprocal


@triton.jit
def _silu(z):
    """``z / (1 + exp(-z))``."""
    return z * reciprocal(1.0 + tl.exp2(-1.4426950408889634 * z))  # exp(-z)


silu_and_mul = Gated(_silu)
