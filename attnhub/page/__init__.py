"""The paged KV cache: append to it, and the index tensors that say where."""

from attnhub.page.api import (
    append_paged_kv,
    append_paged_mla,
    get_batch_indices_positions,
    get_seq_lens,
)

__all__ = [
    "append_paged_kv",
    "append_paged_mla",
    "get_batch_indices_positions",
    "get_seq_lens",
]
