"""Attention in parts: merging partial results by their LSE, and shared-prefix attention."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnhub.cascade.api import merge_state, merge_state_, merge_states

if TYPE_CHECKING:
    from attnhub.cascade.attention import CascadeAttention

__all__ = ["CascadeAttention", "merge_state", "merge_state_", "merge_states"]


def __getattr__(name: str) -> Any:
    # Importing attention takes as long as all that a merge needs.
    if name == "CascadeAttention":
        return importlib.import_module("attnhub.cascade.attention").CascadeAttention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
