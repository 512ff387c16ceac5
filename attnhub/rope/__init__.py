"""Rotary position embedding: on the fly or from a table, into new tensors or in place."""

from attnhub.rope.api import (
    apply_rope,
    apply_rope_,
    apply_rope_cos_sin,
    apply_rope_cos_sin_,
)
from attnhub.rope.tables import cos_sin_cache, positions

__all__ = [
    "apply_rope",
    "apply_rope_",
    "apply_rope_cos_sin",
    "apply_rope_cos_sin_",
    "cos_sin_cache",
    "positions",
]
