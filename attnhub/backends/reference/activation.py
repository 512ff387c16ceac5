"""``attnhub.activation`` by its reference."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnhub.activation import reference
from attnhub.backends.reference import Reference


def _wrap(function: Callable[..., Tensor]) -> Reference:
    def run(x: Tensor, out: Tensor, scale: Tensor | None) -> None:
        dtype = None if scale is None else out.dtype
        out.copy_(function(x, dtype=dtype, scale=scale))

    return Reference(run)


silu_and_mul = _wrap(reference.silu_and_mul)
gelu_and_mul = _wrap(reference.gelu_and_mul)
gelu_tanh_and_mul = _wrap(reference.gelu_tanh_and_mul)
