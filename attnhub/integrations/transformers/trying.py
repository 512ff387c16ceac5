"""To try on values what a module computes, without leaving a trace in it."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

_POSITIONAL = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}

Found = TypeVar("Found")


def agrees(actual: Any, expected: Tensor) -> bool:
    """Within what a rounding more or less makes."""
    near = 4 * torch.finfo(expected.dtype).eps
    return isinstance(actual, Tensor) and torch.allclose(actual, expected, rtol=near, atol=near)


def values(*shape: int, like: Tensor, low: float, high: float) -> Tensor:
    """Evenly from ``low`` to ``high``; random ones would move the user's generator on."""
    return torch.linspace(low, high, math.prod(shape)).view(shape).to(like)


def _takes_one(forward: Callable[..., Any]) -> bool:
    one = list(inspect.signature(forward).parameters.values())
    return len(one) == 1 and one[0].kind in _POSITIONAL


def holds_only(module: nn.Module, parameters: set[str], children: set[str]) -> bool:
    """Whether a call can neither read nor change anything else that a module keeps.

    A forward that someone has put on the module (to load weights before it runs, for example) is
    not ours to pass by either.
    """
    mine = vars(module)
    return (
        {name for name, _ in module.named_parameters(recurse=False)} == parameters
        and {name for name, _ in module.named_children()} <= children
        and not any(True for _ in module.buffers(recurse=False))
        and not any(isinstance(value, Tensor) for value in mine.values())
        and type(module).get_extra_state is nn.Module.get_extra_state
        and "forward" not in mine
    )


def probe(find: Callable[[nn.Module], Found | None], module: nn.Module) -> Found | None:
    """What is found by trying a module, which may be anything and fail at it: then nothing."""
    try:
        return find(module) if _takes_one(module.forward) else None
    except Exception:  # noqa: BLE001 - what a module may raise is not known here
        return None


def twin(module: nn.Module, parameters: dict[str, Any], children: dict[str, Any]) -> nn.Module:
    """A module of the same code and settings; to call it leaves the given one as it is."""
    made = copy.copy(module)
    # The copy shares the registers of the given one, so that to set in one would set in both.
    fresh: dict[str, Any] = {"_buffers": {}, "_non_persistent_buffers_set": set()}
    vars(made).update(_parameters=parameters, _modules=children, **fresh)
    return made


def is_capturing() -> bool:
    """Whether what runs now is recorded for a CUDA graph, instead of being computed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
