"""Attention variants: what is computed between the products with K and V, as a value (torch-free).

A `Variant` holds flags, numbers and traced Python mods. The graphs of the mods are given to one
emitter per target; the torch one is `attnhub.variant.torch_emitter.evaluate`.
"""

from __future__ import annotations

from attnhub.variant.expr import OPS, Expr, Op
from attnhub.variant.functor import Functor
from attnhub.variant.graph import Graph
from attnhub.variant.params import ParamSpec
from attnhub.variant.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from attnhub.variant.symbol import ScalarParam, TensorParam
from attnhub.variant.trace import HOOKS, and_masks, or_masks, trace
from attnhub.variant.variant import Variant

__all__ = [
    "HOOKS",
    "OPS",
    "Expr",
    "Functor",
    "Graph",
    "LinearScaling",
    "Llama3Scaling",
    "Op",
    "ParamSpec",
    "Rope",
    "ScalarParam",
    "TensorParam",
    "Variant",
    "YarnScaling",
    "and_masks",
    "or_masks",
    "trace",
]
