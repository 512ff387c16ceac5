"""Attention: ``attention`` for dense tensors, ``BatchAttention`` for serving."""

from attnhub.attn.batch_attention import BatchAttention
from attnhub.attn.functional import attention
from attnhub.attn.kv import (
    BlockSparse,
    BlockSparseKV,
    DTypes,
    GraphLimits,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Scales,
    VariableBlockKV,
    VariableBlocks,
)

__all__ = [
    "BatchAttention",
    "BlockSparse",
    "BlockSparseKV",
    "DTypes",
    "GraphLimits",
    "Paged",
    "PagedKV",
    "Ragged",
    "RaggedKV",
    "Scales",
    "VariableBlockKV",
    "VariableBlocks",
    "attention",
]
