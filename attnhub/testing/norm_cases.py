"""Calls of ``attnhub.norm`` for any of its problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attnhub import norm
from attnhub.norm.problem import FusedAddRMSNormProblem, LayerNormProblem, RMSNormProblem
from attnhub.plugin import Calls
from attnhub.testing.cases import Results
from attnhub.testing.generators import poison_, random_tensor

#: What comes before ``hidden``; only rows that can lie apart are asked for where they should.
_FORMS = {"rows": (5,), "batches of rows": (2, 3)}
_CONTIGUOUS_FORMS = {**_FORMS, "one row": (), "no rows": (0,)}
#: Larger than 1e-6, so that a kernel that forgets it is seen.
_EPS = 0.125

_Problem = RMSNormProblem | FusedAddRMSNormProblem | LayerNormProblem
_Run = Callable[[], Results]


def _inputs(
    problem: _Problem, device: torch.device, generator: torch.Generator
) -> dict[str, Tensor]:
    """``[..., hidden]`` of each form, contiguous or cut out of poisoned memory.

    The first row is so large that its squares pass float16, the second is zero.
    """
    dtype, hidden = getattr(torch, problem.dtype), problem.hidden
    found = {}
    for name, outer in (_CONTIGUOUS_FORMS if problem.contiguous else _FORMS).items():
        x = random_tensor((math.prod(outer), hidden), dtype, device, generator)
        x[:1] *= 100
        x[1:2] = 0
        found[name] = x.view(*outer, hidden) if problem.contiguous else _apart(x, outer)
    return found


def _apart(x: Tensor, outer: tuple[int, ...]) -> Tensor:
    rows, hidden = x.shape
    wide = poison_(x.new_empty(rows, hidden + 8))
    wide[:, :hidden] = x
    return wide.view(*outer, hidden + 8)[..., :hidden]


def _weight(problem: _Problem, device: torch.device, generator: torch.Generator) -> Tensor:
    return random_tensor((problem.hidden,), getattr(torch, problem.dtype), device, generator)


def _rmsnorm(problem: RMSNormProblem, device: torch.device, generator: torch.Generator) -> _Run:
    """Into given memory, into new memory, and into that of the input, by another tensor."""
    inputs, weight = _inputs(problem, device, generator), _weight(problem, device, generator)

    def run() -> Results:
        found = {}
        for name, x in inputs.items():
            found[name] = norm.rmsnorm(x, weight, out=poison_(torch.empty_like(x)))
            found[f"{name}, gemma"] = norm.gemma_rmsnorm(x, weight, eps=_EPS)
            found[f"{name}, in place"] = norm.rmsnorm(x, weight, out=x[:])
        return found

    return run


def _fused_add_rmsnorm(
    problem: FusedAddRMSNormProblem, device: torch.device, generator: torch.Generator
) -> _Run:
    weight = _weight(problem, device, generator)

    def inputs() -> Iterable[tuple[str, Tensor]]:
        return _inputs(problem, device, generator).items()

    def run() -> Results:
        found = {}
        for function in (norm.fused_add_rmsnorm, norm.gemma_fused_add_rmsnorm):
            for (name, x), (_, residual) in zip(inputs(), inputs(), strict=True):
                function(x, residual, weight, eps=_EPS)
                found[f"{name}, {function.__name__}"] = x
                found[f"{name}, residual of {function.__name__}"] = residual
        return found

    return run


def _layernorm(problem: LayerNormProblem, device: torch.device, generator: torch.Generator) -> _Run:
    """As for rmsnorm."""
    inputs, weight = _inputs(problem, device, generator), _weight(problem, device, generator)
    bias = _weight(problem, device, generator) if problem.bias else None

    def run() -> Results:
        found = {}
        for name, x in inputs.items():
            out = poison_(torch.empty_like(x))
            found[name] = norm.layernorm(x, weight, bias, eps=_EPS, out=out)
            found[f"{name}, in place"] = norm.layernorm(x, weight, bias, eps=_EPS, out=x[:])
        return found

    return run


rmsnorm = Calls(build=_rmsnorm)
fused_add_rmsnorm = Calls(build=_fused_add_rmsnorm)
layernorm = Calls(build=_layernorm)
