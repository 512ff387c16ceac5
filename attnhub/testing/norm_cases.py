"""Calls of ``attnhub.norm`` for any of its problems."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnhub import norm
from attnhub.norm.problem import FusedAddRMSNormProblem, LayerNormProblem, RMSNormProblem
from attnhub.plugin import Calls
from attnhub.testing.cases import Results
from attnhub.testing.generators import poison_, random_tensor

_TOKENS = 5
#: Larger than 1e-6, so that a kernel that forgets it is seen.
_EPS = 0.125

_Problem = RMSNormProblem | FusedAddRMSNormProblem | LayerNormProblem
_Run = Callable[[], Results]


def _rows(problem: _Problem, device: torch.device, generator: torch.Generator) -> Tensor:
    """``[5, hidden]``, contiguous or cut out of poisoned memory as the problem says.

    The first row is so large that its squares pass float16, the second is zero.
    """
    dtype = getattr(torch, problem.dtype)
    x = random_tensor((_TOKENS, problem.hidden), dtype, device, generator)
    x[0] *= 100
    x[1] = 0
    if problem.contiguous:
        return x
    wide = poison_(torch.empty(_TOKENS, problem.hidden + 8, dtype=dtype, device=device))
    wide[:, : problem.hidden] = x
    return wide[:, : problem.hidden]


def _weight(problem: _Problem, device: torch.device, generator: torch.Generator) -> Tensor:
    return random_tensor((problem.hidden,), getattr(torch, problem.dtype), device, generator)


def _rmsnorm(problem: RMSNormProblem, device: torch.device, generator: torch.Generator) -> _Run:
    x, weight = _rows(problem, device, generator), _weight(problem, device, generator)

    def run() -> Results:
        return {
            "plain": norm.rmsnorm(x, weight, out=poison_(torch.empty_like(x))),
            "gemma": norm.gemma_rmsnorm(x, weight, eps=_EPS),
        }

    return run


def _fused_add_rmsnorm(
    problem: FusedAddRMSNormProblem, device: torch.device, generator: torch.Generator
) -> _Run:
    pairs = [[_rows(problem, device, generator) for _ in range(2)] for _ in range(2)]
    weight = _weight(problem, device, generator)

    def run() -> Results:
        (x, residual), (gemma_x, gemma_residual) = pairs
        norm.fused_add_rmsnorm(x, residual, weight)
        norm.gemma_fused_add_rmsnorm(gemma_x, gemma_residual, weight, eps=_EPS)
        return {
            "plain": x,
            "residual": residual,
            "gemma": gemma_x,
            "gemma residual": gemma_residual,
        }

    return run


def _layernorm(problem: LayerNormProblem, device: torch.device, generator: torch.Generator) -> _Run:
    x, weight = _rows(problem, device, generator), _weight(problem, device, generator)
    bias = _weight(problem, device, generator) if problem.bias else None

    def run() -> Results:
        out = poison_(torch.empty_like(x))
        return {"out": norm.layernorm(x, weight, bias, eps=_EPS, out=out)}

    return run


rmsnorm = Calls(build=_rmsnorm)
fused_add_rmsnorm = Calls(build=_fused_add_rmsnorm)
layernorm = Calls(build=_layernorm)
