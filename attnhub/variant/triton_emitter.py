"""Variants as Triton: the source of a module with one ``@triton.jit`` function for each hook.

Arguments of a function are those of the mod, as blocks that broadcast against each other, and the
run-time parameters as one flat tuple, which :func:`emit` lays out. As in CUDA
(:mod:`attnhub.variant.cuda_emitter`), causal masks, windows, the scale and rotations are the
kernel's own, the soft cap and ALiBi are a part of ``score_mod``, and arithmetic is that of the
torch emitter in float32, int32 and bool.

Functions are as exact as Triton 3.6 makes them on NVIDIA: logarithms, ``sin``, ``cos`` and ``erf``
are libdevice's and right to about 2 units in the last place, as are ``div.full``, ``exp2``,
``sqrt`` and ``rsqrt``, approximate instructions, of which the last three take subnormal operands
as 0. ``exp`` is ``ex2.approx`` of the rounded ``x log2 e``, so its relative error, and that of
``sigmoid`` below 0, grows with the size of x: to 2^-18 where float32 ends. See
:mod:`attnhub.variant.triton_functions` for ``log1p``, ``tanh`` and ``pow``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType

from attnhub.errors import InvalidArgument
from attnhub.variant.expr import Expr, Value
from attnhub.variant.params import Kind, ParamSpec
from attnhub.variant.trace import HOOKS
from attnhub.variant.variant import ALIBI_SLOPES, SINKS, Variant

_TYPES: Mapping[Kind, str] = MappingProxyType(
    {"float": "tl.float32", "int": "tl.int32", "bool": "tl.int1"}
)

#: What an operation is in Triton, by the kind of its last argument where that matters.
_OPERATIONS: Mapping[str | tuple[str, Kind], str] = MappingProxyType(
    {
        "to_float": "{a}.to(tl.float32)",
        "to_int": "{a}.to(tl.int32)",
        "add": "{a} + {b}",
        "sub": "{a} - {b}",
        "mul": "{a} * {b}",
        "div": "{a} / {b}",
        "floordiv": "functions.floor_div({a}, {b})",
        "mod": "functions.floor_mod({a}, {b})",
        "pow": "functions.power({a}, {b})",
        # Triton's default drops a NaN; torch does not, and integers have none.
        "minimum": "tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
        "maximum": "tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
        "neg": "-{a}",
        "abs": "tl.abs({a})",
        "exp": "tl.exp({a})",
        "exp2": "tl.exp2({a})",
        "log": "tl.log({a})",
        "log1p": "functions.log1p({a})",
        "log2": "tl.log2({a})",
        "sqrt": "tl.sqrt({a})",
        "rsqrt": "tl.rsqrt({a})",
        "sin": "tl.sin({a})",
        "cos": "tl.cos({a})",
        "tanh": "functions.tanh({a})",
        "sigmoid": "tl.sigmoid({a})",
        "erf": "tl.erf({a})",
        "floor": "tl.floor({a})",
        "eq": "{a} == {b}",
        "ne": "{a} != {b}",
        "lt": "{a} < {b}",
        "le": "{a} <= {b}",
        "gt": "{a} > {b}",
        "ge": "{a} >= {b}",
        "and": "{a} & {b}",
        "or": "{a} | {b}",
        "xor": "{a} ^ {b}",
        ("not", "bool"): "{a} == 0",
        ("not", "int"): "~{a}",
        "where": "tl.where({a}, {b}, {c})",
    }
)

_HEAD = """\
import triton
import triton.language as tl
from attnhub.variant import triton_functions as functions
"""


def emit(variant: Variant, *, on_device: Collection[str] = ()) -> str:
    """Return the source of the module, the same for equal variants in every process.

    A hook that the variant does not need has no function. ``params`` of each function holds the
    variant's parameters in the order of ``variant.params``: of a tensor its pointer, its strides
    and its sizes, of a scalar its value, or a pointer to it if it is named in ``on_device``.

    Raises:
        InvalidArgument: a variant by a functor, which is C++.

    Example:
        >>> from attnhub.variant import ScalarParam, Variant
        >>> bias = ScalarParam("bias")
        >>> print(emit(Variant(score_mod=lambda score, b, h, q_idx, kv_idx: score + bias)))
        import triton
        import triton.language as tl
        from attnhub.variant import triton_functions as functions
        <BLANKLINE>
        <BLANKLINE>
        @triton.jit
        def score_mod(score, b, h, q_idx, kv_idx, params):
            # score + bias
            t0 = tl.cast(params[0], tl.float32)
            t1 = score + t0
            return t1
        <BLANKLINE>
    """
    if variant.functor is not None:
        raise InvalidArgument(
            "a functor is C++ and has no form in Triton; write the variant with mods"
        )
    module = _Module(variant, on_device)
    functions = [text for name in (*HOOKS, "sink") if (text := module.function(name))]
    return "\n\n".join([_HEAD, *functions])


def hooks(variant: Variant) -> frozenset[str]:
    """Return the names of the functions that :func:`emit` writes."""
    built_in = ["score_mod"] * bool(variant.soft_cap or variant.alibi) + ["sink"] * variant.sinks
    return frozenset([*built_in, *(name for name, _ in variant.hooks)])


class _Module:
    """The functions of one variant."""

    def __init__(self, variant: Variant, on_device: Collection[str]) -> None:
        self._variant = variant
        self._on_device = on_device
        self._places: dict[str, int] = {}
        place = 0
        for spec in variant.params:
            self._places[spec.name] = place
            place += 1 if spec.kind == "scalar" else 1 + 2 * spec.ndim

    def function(self, name: str) -> str:
        """Its source, or nothing if the variant does not need it."""
        if name not in hooks(self._variant):
            return ""
        inputs: tuple[str, ...] = ("h",)
        if name == "sink":
            body = [f"return {self._element(SINKS, ['h'])}"]
        else:
            inputs, body = HOOKS[name].inputs, self._body(name)
        statements = "".join(f"    {statement}\n" for statement in body)
        return f"@triton.jit\ndef {name}({', '.join(inputs)}, params):\n{statements}"

    def _body(self, name: str) -> list[str]:
        statements: list[str] = []
        if name == "score_mod" and (cap := self._variant.soft_cap) is not None:
            statements.append(f"score = {cap!r} * functions.tanh(score * {1.0 / cap!r})")
        if name == "score_mod" and self._variant.alibi:
            slope = self._element(ALIBI_SLOPES, ["h"])
            statements.append(f"score += {slope} * (kv_idx - q_idx).to(tl.float32)")
        graph = self._variant.hook(name)
        if graph is None:
            return [*statements, "return score"]
        names: dict[Expr, str] = {}
        values: list[str] = []
        for node in graph.nodes:
            if node.op == "input":
                names[node] = str(node.value)
                continue
            names[node] = f"t{len(values)}"
            values.append(f"{names[node]} = {self._value(node, [names[a] for a in node.args])}")
        return [f"# {graph}", *statements, *values, f"return {names[graph.root]}"]

    def _value(self, node: Expr, args: list[str]) -> str:
        if node.op == "const":
            return f"tl.full([], {_literal(node.value)}, {_TYPES[node.kind]})"
        if isinstance(node.value, ParamSpec):
            return self._element(node.value, args)
        template = _OPERATIONS.get(node.op) or _OPERATIONS[node.op, node.args[-1].kind]
        return template.format(**dict(zip("abc", args, strict=False)))

    def _element(self, spec: ParamSpec, indices: list[str]) -> str:
        """A scalar, or the element of a tensor that the indices lead to."""
        place, kind = self._places[spec.name], _TYPES[spec.element_kind]
        at = f"params[{place}]"
        if spec.kind == "scalar":
            value = f"tl.load({at})" if spec.name in self._on_device else at
            return f"tl.cast({value}, {kind})"
        strides, sizes = place + 1, place + 1 + spec.ndim
        steps = [
            f"functions.inside({index}, params[{sizes + axis}]) * params[{strides + axis}]"
            for axis, index in enumerate(indices)
        ]
        return f"tl.load({' + '.join([at, *steps])}).to({kind})"


def _literal(value: Value) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
