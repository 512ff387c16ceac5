"""Tracing: run a mod once on symbols and keep the expression it builds.

The style of the mods, and their meaning, is FlexAttention's (Dong et al. 2024, arXiv:2412.05496): a
Python function of one score or element and its indices, written with operators and torch functions.
Tensors and scalars that change from call to call are not captured but declared (`TensorParam`,
`ScalarParam`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attnhub.errors import InvalidArgument, TraceError
from attnhub.variant.expr import Expr, cast
from attnhub.variant.graph import Graph
from attnhub.variant.params import Kind
from attnhub.variant.symbol import Symbol, lift

Mod = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One place in attention that a mod can fill: its arguments and the kind it returns."""

    inputs: tuple[str, ...]
    result: Kind


HOOKS: Mapping[str, Hook] = MappingProxyType(
    {
        "score_mod": Hook(inputs=("score", "b", "h", "q_idx", "kv_idx"), result="float"),
        "mask_mod": Hook(inputs=("b", "h", "q_idx", "kv_idx"), result="bool"),
        "query_mod": Hook(inputs=("x", "b", "h", "q_idx", "d"), result="float"),
        "key_mod": Hook(inputs=("x", "b", "h_kv", "kv_idx", "d"), result="float"),
        "output_mod": Hook(inputs=("x", "b", "h", "q_idx", "d"), result="float"),
    }
)
"""Every hook of a variant, by the name of the `Variant` field that holds it."""


def trace(hook: str, mod: Mod | Graph) -> Graph:
    """Return the graph of `mod`; a graph of that hook is returned as it is.

    Args:
        hook: a name in `HOOKS`; it fixes the arguments (all int scalars but `score` and `x`, which
            are floats) and the kind of the result (bool for mask_mod, else float; ints promote).
        mod: a function of these arguments, called once with symbols. A constant result is a graph
            too.

    Raises:
        InvalidArgument: an unknown hook, or a graph of another hook.
        TraceError: the function takes other arguments, branches on a value, captures a tensor,
            calls an unsupported torch function or returns the wrong kind. The message starts with
            the hook.

    Example:
        >>> print(trace("mask_mod", lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= 128))
        q_idx - kv_idx <= 128
    """
    if hook not in HOOKS:
        raise InvalidArgument(f"hook {hook!r} does not exist; use one of {', '.join(HOOKS)}")
    expected = HOOKS[hook]
    if isinstance(mod, Graph):
        if (mod.inputs, mod.root.kind) != (expected.inputs, expected.result):
            raise InvalidArgument(
                f"{hook} was given a graph of ({', '.join(mod.inputs)}) with a {mod.root.kind} "
                f"result; it takes ({', '.join(expected.inputs)}) and gives a {expected.result}"
            )
        return mod
    try:
        _check_signature(mod, expected)
        symbols = [Symbol(Expr("input", value=name)) for name in expected.inputs]
        return Graph(expected.inputs, _result(mod(*symbols), expected.result))
    except TraceError as error:
        raise TraceError(f"{hook}: {error}") from error


def _check_signature(mod: Mod, expected: Hook) -> None:
    names = ", ".join(expected.inputs)
    if not callable(mod):
        raise TraceError(f"{mod!r} is not callable; give a function of ({names}), a Graph or None")
    try:
        signature = inspect.signature(mod)
    except ValueError:
        return  # some builtins have none; calling them says what is wrong
    try:
        signature.bind(*expected.inputs)
    except TypeError as error:
        raise TraceError(
            f"the function takes {signature}, but it is called with the {len(expected.inputs)} "
            f"arguments ({names}): {error}"
        ) from None


def _result(value: Any, wanted: Kind) -> Expr:
    """Node of what a mod returned, promoted from int to float if need be."""
    if value is None:
        raise TraceError(f"the function returned None; it must return a {wanted}")
    node = lift(value)
    if node.kind == wanted or (node.kind == "int" and wanted == "float"):
        return cast(node, wanted)
    advice = {
        "bool": "return a comparison, or x != 0",
        "float": "turn the mask into numbers by torch.where(mask, 1.0, 0.0)",
    }
    raise TraceError(f"the result is of kind {node.kind} and must be {wanted}; {advice[wanted]}")


def and_masks(*mods: Mod) -> Mod:
    """Return the mask_mod that keeps what every one of `mods` keeps; everything if there is none.

    Works on symbols and on tensors, as the function of the same name in FlexAttention does.

    Example:
        >>> def causal(b, h, q_idx, kv_idx):
        ...     return q_idx >= kv_idx
        >>> def near(b, h, q_idx, kv_idx):
        ...     return q_idx - kv_idx <= 128
        >>> print(trace("mask_mod", and_masks(causal, near)))
        (q_idx >= kv_idx) & (q_idx - kv_idx <= 128)
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result: Any = True
        for mod in mods:
            result = result & mod(b, h, q_idx, kv_idx)
        return result

    return mask_mod


def or_masks(*mods: Mod) -> Mod:
    """Return the mask_mod that keeps what at least one of `mods` keeps; nothing if there is none.

    Works on symbols and on tensors, as the function of the same name in FlexAttention does.

    Example:
        >>> def causal(b, h, q_idx, kv_idx):
        ...     return q_idx >= kv_idx
        >>> def prefix(b, h, q_idx, kv_idx):
        ...     return kv_idx < 16
        >>> print(trace("mask_mod", or_masks(causal, prefix)))
        (q_idx >= kv_idx) | (kv_idx < 16)
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result: Any = False
        for mod in mods:
            result = result | mod(b, h, q_idx, kv_idx)
        return result

    return mask_mod
