"""Inputs of the gated activations: feed-forward sizes for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnhub.activation import api, reference
from attnhub.activation.problem import GatedProblem
from attnhub.core.calls import Run, spaced
from attnhub.core.problem import Work
from attnhub.core.workload import Workload

#: (tokens, hidden, tags); 111 is no multiple of a vector, 1 and 128 tokens are decode batches,
#: 14336 and 28672 are the feed-forward sizes of an 8B and a 70B Llama.
_SIZES = (
    (7, 64, "small"),
    (5, 111, "small"),
    (1, 14336, "h200"),
    (128, 14336, "h200"),
    (8192, 14336, "h200"),
    (16384, 14336, "h200"),
    (8192, 28672, "h200"),
)


def _cases(function: Callable[..., Tensor]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{tokens}x{hidden}-bfloat16",
            make=_make(function, tokens, hidden),
            work=Work(flops=6.0 * tokens * hidden, bytes=6.0 * tokens * hidden),
            tags=frozenset({tag}),
            facts={"tokens": tokens, "hidden": hidden, "dtype": "bfloat16"},
        )
        for tokens, hidden, tag in _SIZES
    )


def _make(function: Callable[..., Tensor], tokens: int, hidden: int) -> Callable[..., Any]:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
        shape = (tokens, 2 * hidden)
        drawn = torch.randn(shape, generator=generator, device=generator.device)
        x = drawn.to(device, torch.bfloat16)
        out = x.new_empty(tokens, hidden)
        return lambda: function(x, out=out)

    return make


silu_and_mul = _cases(api.silu_and_mul)
gelu_and_mul = _cases(api.gelu_and_mul)
gelu_tanh_and_mul = _cases(api.gelu_tanh_and_mul)


#: So small that products of a large gate pass the range of both FP8 formats.
_SCALE = 2.0**-9


def _calls(function: Callable[..., Tensor]) -> Callable[..., Run]:
    """Rows of any form, or of those that can lie apart where they should.

    Gates so large that float16 holds no square of theirs, and zeros.
    """

    def build(problem: GatedProblem, device: torch.device, generator: torch.Generator) -> Run:
        dtype = getattr(torch, problem.dtype)
        fp8 = None if problem.out_dtype == "same" else getattr(torch, problem.out_dtype)
        scale = None if fp8 is None else torch.tensor(_SCALE, device=device)

        def rows(*outer: int) -> tuple[Tensor, Tensor]:
            drawn = torch.randn(math.prod(outer), 2 * problem.hidden, generator=generator)
            drawn[:1, : problem.hidden] *= 100
            drawn[1:2, : problem.hidden] = 0
            drawn = drawn.view(*outer, 2 * problem.hidden).to(dtype)
            x = (drawn if fp8 is None else _clear_of_ties(drawn, fp8, function.__name__)).to(device)
            out = torch.full((*outer, problem.hidden), math.nan, dtype=fp8 or dtype, device=device)
            return (x, out) if problem.contiguous else (spaced(x), spaced(out))

        inputs = {"rows": rows(5), "batches of rows": rows(2, 3)}
        if problem.contiguous:
            inputs |= {"one row": rows(), "no rows": rows(0)}
        return lambda: {
            name: function(x, out=out, dtype=fp8, scale=scale) for name, (x, out) in inputs.items()
        }

    return build


def _clear_of_ties(x: Tensor, fp8: torch.dtype, name: str) -> Tensor:
    """``x`` with 0 for each up projection whose product lies about half-way between FP8 values.

    Two float32 results that are equal but for their last bits would be stored as different values.
    """
    function = getattr(reference, name)
    sides = (torch.tensor(_SCALE * (1 + side), dtype=torch.float64) for side in (-2e-4, 2e-4))
    down, up = (function(x.double(), dtype=fp8, scale=side).float() for side in sides)
    gate, factor = x.chunk(2, dim=-1)
    return torch.cat([gate, factor.masked_fill(down != up, 0.0)], dim=-1)


calls = {
    "activation.silu_and_mul": _calls(api.silu_and_mul),
    "activation.gelu_and_mul": _calls(api.gelu_and_mul),
    "activation.gelu_tanh_and_mul": _calls(api.gelu_tanh_and_mul),
}
