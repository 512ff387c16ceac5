"""The product of gelu, approximated by tanh, and the up projection."""

from __future__ import annotations

import triton
import triton.language as tl

from attnhub_triton_misc.gated import Gated, reciprocal


@triton.jit
def _gelu_tanh(z):
    """``z/2 * (1 + tanh(u)) = z / (1 + exp(-2 u))``, ``u = sqrt(2/pi) * (z + 0.044715 z^3)``."""
    # -2 u to base 2: -2 sqrt(2/pi) / ln(2), and 0.044715 times that.
    exponent = z * (-2.302208198144325 - 0.10294323958002349 * z * z)
    return z * reciprocal(1.0 + tl.exp2(exponent))


gelu_tanh_and_mul = Gated(_gelu_tanh)
