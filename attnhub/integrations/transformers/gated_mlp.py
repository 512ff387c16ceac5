"""The MLP of a model of transformers as one product and one gated activation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnhub.activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from attnhub.integrations.transformers.trying import agrees, holds_only, is_capturing, twin, values

_GATED = (silu_and_mul, gelu_and_mul, gelu_tanh_and_mul)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def gated_of(module: nn.Module) -> Callable[..., Tensor] | None:
    """The op that an MLP's activation is, if :class:`GatedMlp` computes what its forward does."""
    if not holds_only(module, set(), {"gate_proj", "up_proj", "down_proj", "act_fn"}):
        return None
    mlp: Any = module
    if not _are_joinable(mlp.gate_proj, mlp.up_proj) or not isinstance(mlp.down_proj, nn.Module):
        return None
    like = mlp.gate_proj.weight
    # In float32 and far from zero: there the activations and their clipped variants differ.
    wide = values(128, 2, like=like, low=-20.0, high=20.0).float()
    expected = mlp.act_fn(wide[:, :1]) * wide[:, 1:]
    ops = (op for op in _GATED if agrees(expected, op(wide)) and _is_gated_by(mlp, op))
    return next(ops, None)


def _is_gated_by(mlp: Any, op: Callable[..., Tensor]) -> bool:
    """Whether a forward is ``down(op([gate, up]))``, tried on small projections, biases and all.

    Not on its own ones: biases that are zero, as they begin, would hide whether they are added.
    """
    size, like = 6, mlp.gate_proj.weight
    biased = mlp.gate_proj.bias is not None
    gate, up, down = (
        nn.utils.skip_init(nn.Linear, size, size, bias=bias, device=like.device, dtype=like.dtype)
        for bias in (biased, biased, False)
    )
    for linear, low, high in ((gate, -0.6, 1.0), (up, 0.9, -0.4)):
        for x in linear.parameters():
            x.copy_(values(*x.shape, like=like, low=low, high=high))
    down.weight.copy_(2 * torch.eye(size).flip(0))  # exact in every dtype
    children = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    if isinstance(mlp.act_fn, nn.Module):
        children["act_fn"] = mlp.act_fn
    x = values(2, size, like=like, low=-2.0, high=1.5)
    expected = down(op(torch.cat([gate(x), up(x)], dim=-1)))
    return agrees(twin(mlp, {}, children).forward(x), expected)


def _is_hooked(module: Any) -> bool:
    return any(getattr(module, hooks, None) for hooks in _HOOKS)


def _is_plain(linear: Any) -> bool:
    """Whether a product by the weight is all that a projection does when it is called.

    Adapters and quantisation have classes of their own, for the module or its weight.
    """
    return (
        type(linear) is nn.Linear
        and type(linear.weight) is nn.Parameter
        and "forward" not in vars(linear)
        and not _is_hooked(linear)
    )


def _are_joinable(gate: Any, up: Any) -> bool:
    if gate is up or not _is_plain(gate) or not _is_plain(up):
        return False
    kinds = [(x.weight.shape, x.weight.dtype, x.weight.device, x.bias is None) for x in (gate, up)]
    return kinds[0] == kinds[1]


class GatedMlp:
    """The forward of an MLP whose gate and up projections are one product.

    The module is asked at each call what its projections are: adapters and quantisation replace
    them, tools hook them. Where the one product would pass them by, the module's own forward runs.
    """

    def __init__(self, mlp: Any, op: Callable[..., Tensor]) -> None:
        self._mlp = mlp
        self._op = op
        self._act = mlp.act_fn
        self._joined: _Joined | None = _Joined(mlp.gate_proj, mlp.up_proj)

    def __deepcopy__(self, memo: dict[int, Any]) -> GatedMlp:
        made = copy.copy(self)
        mlp, act = copy.deepcopy((self._mlp, self._act), memo)
        # Parameters are copied one by one, so that the copies are views of no matrix.
        vars(made).update(_mlp=mlp, _act=act, _joined=None)
        return made

    def __call__(self, *given: Tensor, **named: Tensor) -> Tensor:
        mlp, act = self._mlp, self._mlp.act_fn
        both = self._product()
        if both is None or act is not self._act or _is_hooked(act) or self._learns():
            own: Tensor = type(mlp).forward(mlp, *given, **named)
            return own
        (x,) = (*given, *named.values())
        down: Tensor = mlp.down_proj(self._op(both(x)))
        return down

    def _learns(self) -> bool:
        """Whether a gradient is wanted of what the one product passes by."""
        if not torch.is_grad_enabled():
            return False
        return any(
            x.requires_grad
            for linear in (self._mlp.gate_proj, self._mlp.up_proj)
            for x in linear.parameters()
        )

    def _product(self) -> _Joined | None:
        """Gate and up as one; None if they are more than plain, or cannot be joined now."""
        gate, up = self._mlp.gate_proj, self._mlp.up_proj
        joined = self._joined
        if joined is None or not joined.is_of(gate, up):
            # Tracing and capturing would record the joining, and leave parameters without values.
            if torch.compiler.is_compiling() or is_capturing():
                return None
            # What was replaced is let go, whole matrix and all.
            joined = self._joined = _Joined(gate, up) if _are_joinable(gate, up) else None
        return joined if joined is not None and _is_plain(gate) and _is_plain(up) else None


class _Joined:
    """Two projections as one product; both keep their parameters, as views of one matrix."""

    def __init__(self, gate: nn.Linear, up: nn.Linear) -> None:
        self._linears = (gate, up)
        self._halves: list[tuple[str, list[nn.Parameter], Tensor]] = []
        self._weight = self._join("weight")
        self._bias = None if gate.bias is None else self._join("bias")

    @torch.no_grad()
    def _join(self, name: str) -> Tensor:
        old = [getattr(linear, name) for linear in self._linears]
        whole = torch.cat([x.detach() for x in old])
        halves = [
            nn.Parameter(half, requires_grad=x.requires_grad)
            for half, x in zip(whole.chunk(2), old, strict=True)
        ]
        for linear, half in zip(self._linears, halves, strict=True):
            setattr(linear, name, half)
        self._halves.append((name, halves, whole))
        return whole

    def is_of(self, gate: Any, up: Any) -> bool:
        """Whether these are the ones, with the parameters that they were given here.

        A model that is moved, converted or loaded anew has others.
        """
        if gate is not self._linears[0] or up is not self._linears[1]:
            return False
        if (gate.bias is None) != (self._bias is None) or (up.bias is None) != (gate.bias is None):
            return False
        return all(
            getattr(linear, name) is half and self._is_view(half, view)
            for name, halves, whole in self._halves
            for linear, half, view in zip(self._linears, halves, whole.chunk(2), strict=True)
        )

    @staticmethod
    def _is_view(half: Tensor, view: Tensor) -> bool:
        if torch.compiler.is_compiling():  # an address has no meaning while tracing
            return half.dtype == view.dtype and half.device == view.device
        return half.data_ptr() == view.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self._weight, self._bias)
