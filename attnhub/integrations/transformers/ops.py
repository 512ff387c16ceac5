"""The small ops of a model of transformers by AttnHub: norms, rotations, gated activations.

What a module computes is tried on values, not read off its name: a module is replaced only if it
agrees with one of AttnHub's ops, and stays as it is otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnhub.activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from attnhub.norm import gemma_rmsnorm, rmsnorm
from attnhub.rope import apply_rope_cos_sin

_GATED = (silu_and_mul, gelu_and_mul, gelu_tanh_and_mul)
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
        if (norm := _norm_of(module)) is not None:
            done.norms += 1
            _replace(module, "forward", norm, done)
        elif (gated := _mlp_of(module)) is not None:
            done.activations += 1
            _replace(module, "forward", gated, done)
    for name in sorted({type(module).__module__ for module in model.modules()}):
        file = sys.modules.get(name)
        if (theirs := getattr(file, _ROTATION, None)) is not None and _rotates_halves(theirs):
            done.rotations.append(name)
            _replace(file, _ROTATION, _apply_rotary_pos_emb, done)
    return done


def _replace(owner: Any, name: str, value: Any, done: ReplacedOps) -> None:
    if name in vars(owner):
        old = vars(owner)[name]
        done._undo.append(lambda: setattr(owner, name, old))  # noqa: SLF001
    else:
        done._undo.append(lambda: delattr(owner, name))  # noqa: SLF001
    setattr(owner, name, value)


def _agrees(actual: Any, expected: Tensor) -> bool:
    """Within what a rounding more or less makes."""
    near = 4 * torch.finfo(expected.dtype).eps
    return isinstance(actual, Tensor) and torch.allclose(actual, expected, rtol=near, atol=near)


def _norm_of(module: nn.Module) -> Callable[..., Tensor] | None:
    weight: Any = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    x = torch.linspace(-2.0, 3.0, 2 * len(weight)).view(2, -1).to(weight)
    expected = module(x)
    for op in _NORMS:
        if _agrees(expected, op(x, weight, eps=eps)):
            # The weight is asked for anew: loading and moving a model replaces it.
            at: Any = module
            return lambda hidden_states: op(hidden_states, at.weight, eps=eps)
    return None


def _mlp_of(module: nn.Module) -> Callable[..., Tensor] | None:
    gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
    down, act = getattr(module, "down_proj", None), getattr(module, "act_fn", None)
    if type(gate) is not nn.Linear or type(up) is not nn.Linear or down is None or act is None:
        return None
    if gate.weight.shape != up.weight.shape or (gate.bias is None) != (up.bias is None):
        return None
    x = torch.linspace(-3.0, 3.0, 2 * gate.in_features).view(2, -1).to(gate.weight)
    wide = torch.cat([gate(x), up(x)], dim=-1)
    expected = act(gate(x)) * up(x)
    for op in _GATED:
        if _agrees(expected, op(wide)) and _agrees(module(x), down(expected)):
            both = _Joined(gate, up)
            return lambda x: down(op(both(x)))
    return None


class _Joined:
    """Two projections as one product; both keep their parameters, as views of one matrix.

    A model that is moved, converted or loaded anew has others, which are joined at the next call.
    """

    def __init__(self, gate: nn.Linear, up: nn.Linear) -> None:
        self._linears = (gate, up)
        self._join()

    def _join(self) -> None:
        self._weight = self._joined("weight")
        self._bias = None if self._linears[0].bias is None else self._joined("bias")
        self._halves = [linear.weight for linear in self._linears]

    def _joined(self, name: str) -> Tensor:
        old = [getattr(linear, name) for linear in self._linears]
        whole = torch.cat([x.detach() for x in old])
        for linear, half, x in zip(self._linears, whole.chunk(2), old, strict=True):
            setattr(linear, name, nn.Parameter(half, requires_grad=x.requires_grad))
        return whole

    def _is_current(self) -> bool:
        if torch.compiler.is_compiling():  # an address has no meaning while tracing
            return True
        views = zip(self._linears, self._halves, self._weight.chunk(2), strict=True)
        return all(
            linear.weight is half and half.data_ptr() == view.data_ptr()
            for linear, half, view in views
        )

    def __call__(self, x: Tensor) -> Tensor:
        if not self._is_current():
            self._join()
        return nn.functional.linear(x, self._weight, self._bias)


def _rotates_halves(theirs: Callable[..., Any]) -> bool:
    """Whether a family's function turns pairs ``(i, i + dim/2)`` of whole heads."""
    q, k = torch.randn(2, 1, 2, 3, 8).unbind()
    angles = torch.randn(1, 3, 4).repeat(1, 1, 2)
    try:
        found = theirs(q, k, angles.cos(), angles.sin())
    except (TypeError, ValueError, RuntimeError):  # it takes other arguments
        return False
    expected = _apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    pairs = zip(found, expected, strict=False)
    return len(found) == 2 and all(_agrees(a, b) for a, b in pairs)


@dataclass(slots=True)
class _Table:
    """Cosines and sines of one forward as AttnHub takes them: the same for every layer."""

    cos: Tensor
    sin: Tensor
    cache: Tensor
    positions: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor, batch: int) -> _Table:
        half = cos.shape[-1] // 2
        cache = torch.cat([cos[..., :half], sin[..., :half]], dim=-1).float().flatten(0, -2)
        rows = torch.arange(cache.shape[0], dtype=torch.int32, device=cos.device)
        # One table for all requests of a batch where all stand at the same positions.
        return cls(cos, sin, cache, rows if cos.shape[0] == batch else rows.repeat(batch))


_last: _Table | None = None


def _table(cos: Tensor, sin: Tensor, batch: int) -> _Table:
    global _last  # noqa: PLW0603 - read and written whole, so threads only cost each other time
    if torch.compiler.is_compiling():
        return _Table.of(cos, sin, batch)
    last = _last
    tokens = batch * cos.shape[-2]
    if last is None or last.cos is not cos or last.sin is not sin or len(last.positions) != tokens:
        _last = last = _Table.of(cos, sin, batch)
    return last


def _apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[batch, heads, len, dim]`` turned by angles ``[batch or 1, len, dim]``."""
    heads_first = unsqueeze_dim == 1
    if heads_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    batch, length = q.shape[:2]
    table = _table(cos, sin, batch)
    turned = apply_rope_cos_sin(q.flatten(0, 1), k.flatten(0, 1), table.positions, table.cache)
    q, k = (x.unflatten(0, (batch, length)) for x in turned)
    return (q.transpose(1, 2), k.transpose(1, 2)) if heads_first else (q, k)
