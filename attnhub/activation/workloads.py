"""Inputs of the gated activations: feed-forward sizes for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnhub.activation import api
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


def _calls(function: Callable[..., Tensor]) -> Callable[..., Run]:
    """Rows of any form, or of those that can lie apart where they should.

    Gates so large that float16 holds no square of theirs, and zeros.
    """

    def build(problem: GatedProblem, device: torch.device, generator: torch.Generator) -> Run:
        def rows(*outer: int) -> tuple[Tensor, Tensor]:
            drawn = torch.randn(math.prod(outer), 2 * problem.hidden, generator=generator)
            drawn[:1, : problem.hidden] *= 100
            drawn[1:2, : problem.hidden] = 0
            drawn = drawn.view(*outer, 2 * problem.hidden)
            x = drawn.to(device, getattr(torch, problem.dtype))
            out = x.new_full((*outer, problem.hidden), math.nan)
            return (x, out) if problem.contiguous else (spaced(x), spaced(out))

        inputs = {"rows": rows(5), "batches of rows": rows(2, 3)}
        if problem.contiguous:
            inputs |= {"one row": rows(), "no rows": rows(0)}
        return lambda: {name: function(x, out=out) for name, (x, out) in inputs.items()}

    return build


calls = {
    "activation.silu_and_mul": _calls(api.silu_and_mul),
    "activation.gelu_and_mul": _calls(api.gelu_and_mul),
    "activation.gelu_tanh_and_mul": _calls(api.gelu_tanh_and_mul),
}
