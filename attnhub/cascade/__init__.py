"""Attention in parts: merging partial results by their LSE, and shared-prefix attention."""

from attnhub.cascade.api import merge_state, merge_state_, merge_states
from attnhub.cascade.attention import CascadeAttention

__all__ = ["CascadeAttention", "merge_state", "merge_state_", "merge_states"]
