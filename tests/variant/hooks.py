"""Kernels that call the hooks of a variant, in the emulator and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.plugin import (
    INCLUDE_DIR,
    KernelSpec,
    ParamLayout,
    Variant,
    VariantCode,
    arch,
    kernel,
    stream,
)

Params = Mapping[str, Tensor | float]

_BLOCK = 128
#: Function of hooks.cuh -> its struct, and the members before the variant.
_FUNCTIONS: Mapping[str, tuple[str, dict[str, str]]] = {
    "grid": (
        "GridParams",
        {
            "x": "const float*",
            "scores": "float*",
            "kept": "bool*",
            "queries": "float*",
            "keys": "float*",
            "outputs": "float*",
            "sinks": "float*",
            **dict.fromkeys(("requests", "heads", "rows", "columns", "shift"), "i32"),
        },
    ),
    "fragment": (
        "FragmentParams",
        {
            "scores": "float*",
            **dict.fromkeys(("request", "qo_idx", "qo_head", "qo_len", "kv_len"), "i32"),
        },
    ),
    "attention": (
        "AttentionParams",
        {
            **dict.fromkeys(("q", "k", "v"), "const float*"),
            **dict.fromkeys(("out", "lse"), "float*"),
            **dict.fromkeys(("qo_indptr", "kv_indptr"), "const i32*"),
            **dict.fromkeys(("requests", "qo_heads", "kv_heads", "dim"), "i32"),
            "scale": "float",
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    function: str
    params: str
    variant: str


def spec(function: str, variant: Variant, name: str, arch: str) -> KernelSpec:
    """The kernel ``hooks::function`` for a variant; ``name`` tells it from those for others."""
    struct, members = _FUNCTIONS[function]
    code = VariantCode.of(variant)
    return KernelSpec(
        name=f"{function}_{name}",
        template="tests.variant:templates/hooks.cu.jinja",
        context=_Context(function=function, params=struct, variant=code.source),
        entry=f"variant_{function}",
        params=ParamLayout({**members, "variant": code.params}),
        arch=arch,
        include_dirs=(INCLUDE_DIR, "tests.variant:include"),
    )


def _launch(
    function: str, variant: Variant, params: Params, device: torch.device, *values: Any
) -> None:
    """Run a kernel on values of its own members, tensors among them, and of the variant's."""
    made = kernel(spec(function, variant, variant.digest[:8], arch(device)))
    addresses = [value.data_ptr() if isinstance(value, Tensor) else value for value in values]
    launch = made.launcher(device.index or 0, block=_BLOCK)
    launch(2, stream(device.index or 0), *addresses, *VariantCode.of(variant).values(params))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What the hooks gave, each ``[requests, heads, rows, columns]``; ``sinks`` ``[heads]``."""

    scores: Tensor
    kept: Tensor
    queries: Tensor
    keys: Tensor
    outputs: Tensor
    sinks: Tensor


def grid(variant: Variant, x: Tensor, params: Params, *, shift: int = 0) -> Grid:
    """Every hook at every position, on x ``[requests, heads, rows, columns]``."""
    floats = {
        name: torch.full_like(x, torch.nan) for name in ("scores", "queries", "keys", "outputs")
    }
    kept = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    sinks = torch.full((x.shape[1],), torch.nan, device=x.device)
    found = Grid(**floats, kept=kept, sinks=sinks)
    results = (found.scores, kept, found.queries, found.keys, found.outputs, sinks)
    _launch("grid", variant, params, x.device, x, *results, *x.shape, shift)
    return found


def attention(
    variant: Variant,
    tensors: tuple[Tensor, Tensor, Tensor],
    indptrs: tuple[Tensor, Tensor],
    params: Params,
) -> tuple[Tensor, Tensor]:
    """Attention without the range masks of a variant, on ragged q, k and v; output and LSE."""
    q, k, v = tensors
    out = torch.full_like(q, torch.nan)
    lse = torch.full(q.shape[:2], torch.nan, device=q.device)
    sizes = (len(indptrs[0]) - 1, q.shape[1], k.shape[1], q.shape[2])
    scale = variant.scale or q.shape[2] ** -0.5
    _launch("attention", variant, params, q.device, q, k, v, out, lse, *indptrs, *sizes, scale)
    return out, lse
