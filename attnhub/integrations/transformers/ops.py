"""The small ops of a model of transformers by AttnHub: norms, rotations, gated activations.

What a module computes is tried on values, not read off its name: a module is replaced only if it
agrees with one of AttnHub's ops, and stays as it is otherwise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnhub.integrations.transformers.gated_mlp import GatedMlp, gated_of
from attnhub.integrations.transformers.rotation import apply_rotary_pos_emb, rotates_halves
from attnhub.integrations.transformers.trying import agrees, holds_only, probe, twin, values
from attnhub.norm import gemma_rmsnorm, rmsnorm

_NORMS = (rmsnorm, gemma_rmsnorm)
_ROTATION = "apply_rotary_pos_emb"

Undo = Callable[[], None]


@dataclass(slots=True)
class ReplacedOps:
    """How many modules compute by AttnHub now, and which families of models rotate by it.

    A model module (``transformers.models.llama.modeling_llama``) has one function for rotations, so
    that every model of the family in this process uses what stands there.
    """

    norms: int = 0
    activations: int = 0
    rotations: list[str] = field(default_factory=list)
    _undo: list[Undo] = field(default_factory=list, repr=False)

    def restore(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()


@torch.no_grad()
def use_ops(model: nn.Module) -> ReplacedOps:
    """Compute a model's RMS norms, rotary embeddings and gated activations by AttnHub.

    Gate and up projections of an MLP are put end to end in one matrix, of which both are views
    then, so that one product feeds the activation; the model needs no more memory for it.

    Args:
        model: a model of transformers, in evaluation mode. Modules that agree with no op of
            AttnHub's stay as they are.

    Returns:
        What was replaced; its ``restore()`` undoes it.

    Example::

        register()
        model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attnhub")
        print(use_ops(model))    # ReplacedOps(norms=61, activations=30, rotations=['...llama'])
    """
    done = ReplacedOps()
    for module in model.modules():
        if (norm := probe(_norm_of, module)) is not None:
            done.norms += 1
            _replace(module, "forward", norm, done)
        elif (gated := probe(gated_of, module)) is not None:
            done.activations += 1
            _replace(module, "forward", GatedMlp(module, gated), done)
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    for name in sorted({type(module).__module__ for module in model.modules()}):
        file = sys.modules.get(name)
        theirs = getattr(file, _ROTATION, None)
        if theirs is not None and rotates_halves(theirs, device):
            done.rotations.append(name)
            _replace(file, _ROTATION, apply_rotary_pos_emb, done)
    return done


def _replace(owner: Any, name: str, value: Any, done: ReplacedOps) -> None:
    if name in vars(owner):
        old = vars(owner)[name]
        done._undo.append(lambda: setattr(owner, name, old))  # noqa: SLF001
    else:
        done._undo.append(lambda: delattr(owner, name))  # noqa: SLF001
    setattr(owner, name, value)


def _norm_of(module: nn.Module) -> _Norm | None:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(eps, float) or not holds_only(module, {"weight"}, set()):
        return None
    weight: Any = module.weight
    if type(weight) is not nn.Parameter or weight.dim() != 1:
        return None
    # Weights as they begin, all ones or zeros, would hide how they are applied.
    w = values(len(weight), like=weight, low=-1.5, high=1.75)
    x = values(2, len(weight), like=weight, low=-2.0, high=3.0)
    x = torch.cat([x, x[1:] * math.sqrt(eps)])  # the last row shows where eps is added
    expected = twin(module, {"weight": nn.Parameter(w), "bias": None}, {}).forward(x)
    ops = (op for op in _NORMS if agrees(expected, op(x, w, eps=eps)))
    return next((_Norm(module, op, eps) for op in ops), None)


class _Norm:
    """The forward of a norm. An object, so that a copy of the model gets one of its own."""

    def __init__(self, module: nn.Module, op: Callable[..., Tensor], eps: float) -> None:
        # The weight is asked for anew: loading and moving a model replaces it.
        self._module: Any = module
        self._op = op
        self._eps = eps

    def __call__(self, *given: Tensor, **named: Tensor) -> Tensor:
        (x,) = (*given, *named.values())  # one, whatever the module calls it
        module = self._module
        if x.dtype != module.weight.dtype:  # a norm that is kept in float32, autocast
            own: Tensor = type(module).forward(module, *given, **named)
            return own
        return self._op(x, module.weight, eps=self._eps)
