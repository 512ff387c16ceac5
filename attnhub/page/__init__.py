"""The paged KV cache: append to it, rotated or not, and the index tensors that say where."""

from attnhub.page.api import (
    append_paged_kv,
    append_paged_mla,
    get_batch_indices_positions,
    get_seq_lens,
)
from attnhub.page.rope_append import rope_append_paged_kv

__all__ = [
    "append_paged_kv",
    "append_paged_mla",
    "get_batch_indices_positions",
    "get_seq_lens",
    "rope_append_paged_kv",
]
