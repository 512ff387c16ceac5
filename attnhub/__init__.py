"""AttnHub: one API for attention and the small kernels round it, served by whichever backend fits.

Importing this module costs next to nothing: names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "BatchAttention": "attnhub.attn",
    "BatchMLA": "attnhub.mla",
    "BlockSparse": "attnhub.attn",
    "BlockSparseKV": "attnhub.attn",
    "DTypes": "attnhub.attn",
    "Decision": "attnhub.core.decision",
    "Functor": "attnhub.variant",
    "GraphLimits": "attnhub.attn",
    "Override": "attnhub.core.options",
    "Paged": "attnhub.attn",
    "PagedKV": "attnhub.attn",
    "Ragged": "attnhub.attn",
    "RaggedKV": "attnhub.attn",
    "Rope": "attnhub.variant",
    "ScalarParam": "attnhub.variant",
    "Scales": "attnhub.attn",
    "TensorParam": "attnhub.variant",
    "VariableBlockKV": "attnhub.attn",
    "VariableBlocks": "attnhub.attn",
    "Variant": "attnhub.variant",
    "attention": "attnhub.attn",
    "configure": "attnhub.core.control",
    "explain": "attnhub.core.control",
    "register": "attnhub.core.control",
    "use": "attnhub.core.control",
}

#: Families that are packages of their own; ``attnhub.norm`` works without importing it first.
_FAMILIES = (
    "activation",
    "cascade",
    "errors",
    "gemm",
    "mla",
    "norm",
    "page",
    "plugin",
    "quantization",
    "rope",
    "sampling",
)

__all__ = [
    "BatchAttention",
    "BatchMLA",
    "BlockSparse",
    "BlockSparseKV",
    "DTypes",
    "Decision",
    "Functor",
    "GraphLimits",
    "Override",
    "Paged",
    "PagedKV",
    "Ragged",
    "RaggedKV",
    "Rope",
    "ScalarParam",
    "Scales",
    "TensorParam",
    "VariableBlockKV",
    "VariableBlocks",
    "Variant",
    "attention",
    "configure",
    "explain",
    "register",
    "use",
]

if TYPE_CHECKING:
    from attnhub.attn import (
        BatchAttention,
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
        attention,
    )
    from attnhub.core.control import configure, explain, register, use
    from attnhub.core.decision import Decision
    from attnhub.core.options import Override
    from attnhub.mla import BatchMLA
    from attnhub.variant import Functor, Rope, ScalarParam, TensorParam, Variant


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
    elif name in _FAMILIES:
        value = importlib.import_module(f"attnhub.{name}")
    else:
        raise AttributeError(f"module 'attnhub' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_FAMILIES})
