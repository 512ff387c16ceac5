"""Variants as CUDA C++: a struct that holds the run-time parameters and computes the hooks.

It is a variant as ``attention/variant.cuh`` says, and its text becomes a part of a kernel's source.
Causal masks, windows, the scale and rotations are not in it, for kernels do these themselves:
variants that differ in them alone have the same struct. Arithmetic is that of the torch emitter in
float32, int32 and bool, except that

* a product and a sum may be fused, without the rounding between;
* functions have errors of a few units in the last place, those of the special-function unit of up
  to 2^-21 (``common/math.cuh`` and ``ptx/math.cuh`` say which), and subnormal numbers may count as
  zero there;
* elements of int64 tensors lose all but their lowest 32 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from attnhub.variant.expr import Expr, Value
from attnhub.variant.functor import Functor
from attnhub.variant.graph import Graph
from attnhub.variant.params import Kind, ParamSpec
from attnhub.variant.variant import ALIBI_SLOPES, SINKS, Variant

STRUCT = "attnhub::EmittedVariant"
"""The struct that `emit` writes."""

CPP_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float",
        "float16": "Half",
        "bfloat16": "Bf16",
        "int32": "i32",
        "int64": "i64",
        "bool": "bool",
    }
)
"""dtype of a run-time parameter -> its type in C++."""

_KIND_TYPES: Mapping[Kind, str] = MappingProxyType({"float": "float", "int": "i32", "bool": "bool"})

#: What an operation is in C++, by the kind of its last argument where that matters.
_OPERATIONS: Mapping[str | tuple[str, Kind], str] = MappingProxyType(
    {
        "scalar": "{param}.get()",
        "index": "{param}.at({args})",
        "to_float": "float({a})",
        "to_int": "i32({a})",
        "add": "{a} + {b}",
        "sub": "{a} - {b}",
        "mul": "{a} * {b}",
        "div": "ptx::div_full({a}, {b})",
        "floordiv": "floor_div({a}, {b})",
        "mod": "floor_mod({a}, {b})",
        "pow": "powf({a}, {b})",
        ("minimum", "int"): "min({a}, {b})",
        ("minimum", "float"): "ptx::min_nan({a}, {b})",
        ("maximum", "int"): "max({a}, {b})",
        ("maximum", "float"): "ptx::max_nan({a}, {b})",
        "neg": "-{a}",
        ("abs", "int"): "abs({a})",
        ("abs", "float"): "fabsf({a})",
        "exp": "expf({a})",
        "exp2": "exp2f({a})",
        "log": "logf({a})",
        "log1p": "log1pf({a})",
        "log2": "log2f({a})",
        "sqrt": "ptx::sqrt_approx({a})",
        "rsqrt": "ptx::rsqrt_approx({a})",
        "sin": "ptx::sin_approx(without_turns({a}))",
        "cos": "ptx::cos_approx(without_turns({a}))",
        "tanh": "tanhf({a})",
        "sigmoid": "sigmoid({a})",
        "erf": "erff({a})",
        "floor": "floorf({a})",
        "eq": "{a} == {b}",
        "ne": "{a} != {b}",
        "lt": "{a} < {b}",
        "le": "{a} <= {b}",
        "gt": "{a} > {b}",
        "ge": "{a} >= {b}",
        ("and", "bool"): "{a} && {b}",
        ("and", "int"): "{a} & {b}",
        ("or", "bool"): "{a} || {b}",
        ("or", "int"): "{a} | {b}",
        ("xor", "bool"): "{a} != {b}",
        ("xor", "int"): "{a} ^ {b}",
        ("not", "bool"): "!{a}",
        ("not", "int"): "~{a}",
        "where": "{a} ? {b} : {c}",
    }
)

#: Index of a mod -> what it is of the position that a hook is given. Values have their own names.
_INDICES: Mapping[str, str] = MappingProxyType(
    {
        "b": "at.request",
        "h": "at.qo_head",
        "h_kv": "at.kv_head",
        "q_idx": "at.q_idx()",
        "kv_idx": "at.kv_idx",
        "d": "at.channel",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hook:
    """A function of the struct, and the flag that has kernels call it."""

    flag: str
    signature: str


#: In the order in which kernels call them.
_HOOKS: Mapping[str, _Hook] = MappingProxyType(
    {
        "query_mod": _Hook(
            flag="kTransformsQueries", signature="float query(const QueryElement& at, float x)"
        ),
        "key_mod": _Hook(
            flag="kTransformsKeys", signature="float key(const KeyElement& at, float x)"
        ),
        "score_mod": _Hook(
            flag="kTransformsScores", signature="float score(const ScorePosition& at, float score)"
        ),
        "mask_mod": _Hook(flag="kMasks", signature="bool keeps(const ScorePosition& at)"),
        "sinks": _Hook(flag="kHasSinks", signature="float sink(i32 qo_head)"),
        "output_mod": _Hook(
            flag="kTransformsOutput", signature="float output(const QueryElement& at, float x)"
        ),
    }
)

_TEXT = """\
#include "attnhub/attention/variant.cuh"
#include "attnhub/attention/variant_params.cuh"

namespace attnhub {{

struct EmittedVariant : PlainVariant {{
{members}}};

}}  // namespace attnhub
"""


_BY_HAND = """\
{source}
#include "attnhub/attention/variant.cuh"

{checks}
namespace attnhub {{

using EmittedVariant = ::{struct};

}}  // namespace attnhub
"""


def emit(variant: Variant) -> str:
    """Return the source of the struct, the same for equal variants in every process.

    Its members are the run-time parameters in the order of ``variant.params``.

    Example:
        >>> from attnhub.variant import ScalarParam, Variant
        >>> bias = ScalarParam("bias")
        >>> print(emit(Variant(score_mod=lambda score, b, h, q_idx, kv_idx: score + bias)))
        #include "attnhub/attention/variant.cuh"
        #include "attnhub/attention/variant_params.cuh"
        <BLANKLINE>
        namespace attnhub {
        <BLANKLINE>
        struct EmittedVariant : PlainVariant {
          static constexpr bool kTransformsScores = true;
        <BLANKLINE>
          ScalarParam<float> param_bias;
        <BLANKLINE>
          // score_mod = score + bias
          ATTNHUB_DEVICE float score(const ScorePosition& at, float score) const {
            const float t0 = param_bias.get();
            const float t1 = score + t0;
            return t1;
          }
        };
        <BLANKLINE>
        }  // namespace attnhub
        <BLANKLINE>
    """
    if variant.functor is not None:
        return _by_hand(variant, variant.functor)
    bodies = {name: body for name in _HOOKS if (body := _body(variant, name))}
    flags = {_HOOKS[name].flag: "true" for name in bodies}
    if not variant.softmax:
        flags["kSoftmax"] = "false"
    blocks = [
        [f"static constexpr bool {flag} = {value};" for flag, value in flags.items()],
        [f"{_member_type(spec)} {member(spec)};" for spec in variant.params],
        *(_function(name, body, variant.hook(name)) for name, body in bodies.items()),
    ]
    members = "\n".join("".join(f"  {line}\n" for line in block) for block in blocks if block)
    return _TEXT.format(members=members)


def _by_hand(variant: Variant, functor: Functor) -> str:
    """A struct that is given, under the name of one that is emitted; its flags are checked."""
    flags = {hook.flag: name in functor.hooks for name, hook in _HOOKS.items() if name != "sinks"}
    flags["kSoftmax"] = variant.softmax
    checks = "".join(
        f'static_assert({functor.struct}::{flag} == {str(value).lower()}, "as its Functor says");\n'
        for flag, value in flags.items()
    )
    checks += (
        f"static_assert({functor.struct}::kSoftmax || !{functor.struct}::kHasSinks,\n"
        '              "a sink is a term of the softmax denominator");\n'
    )
    return _BY_HAND.format(source=functor.source, checks=checks, struct=functor.struct)


def member(spec: ParamSpec) -> str:
    """Return what the struct calls a parameter; a name alone might be a word of C++."""
    return f"param_{spec.name}"


def _member_type(spec: ParamSpec) -> str:
    element = CPP_TYPES[spec.dtype]
    return (
        f"ScalarParam<{element}>"
        if spec.kind == "scalar"
        else f"TensorParam<{element}, {spec.ndim}>"
    )


def _function(name: str, body: list[str], graph: Graph | None) -> list[str]:
    return [
        *([f"// {name} = {graph}"] if graph else []),
        f"ATTNHUB_DEVICE {_HOOKS[name].signature} const {{",
        *(f"  {statement}" for statement in body),
        "}",
    ]


def _body(variant: Variant, hook: str) -> list[str]:
    """The statements of a hook; none if the variant does not need it."""
    statements = []
    if hook == "sinks" and variant.sinks:
        statements.append(f"return {member(SINKS)}.at(qo_head);")
    if hook == "score_mod" and variant.soft_cap is not None:
        statements.append(f"score = soft_cap(score, {_literal(variant.soft_cap)});")
    if hook == "score_mod" and variant.alibi:
        slope = f"{member(ALIBI_SLOPES)}.at(at.qo_head)"
        statements.append(f"score += {slope} * float(at.kv_idx - at.q_idx());")
    if graph := variant.hook(hook):
        return [*statements, *_evaluation(graph)]
    return [*statements, "return score;"] if statements and hook == "score_mod" else statements


def _evaluation(graph: Graph) -> list[str]:
    """A statement for each node of a graph that is more than a name or a number."""
    names: dict[Expr, str] = {}
    statements: list[str] = []
    num_results = 0
    for node in graph.nodes:
        if node.op == "const":
            names[node] = _literal(node.value)
        elif node.op == "input" and node.kind == "float":
            names[node] = str(node.value)
        else:
            is_index = node.op == "input"
            names[node] = str(node.value) if is_index else f"t{num_results}"
            num_results += not is_index
            value = _operation(node, [names[arg] for arg in node.args])
            statements.append(f"const {_KIND_TYPES[node.kind]} {names[node]} = {value};")
    return [*statements, f"return {names[graph.root]};"]


def _operation(node: Expr, args: list[str]) -> str:
    if node.op == "input":
        return _INDICES[str(node.value)]
    if isinstance(node.value, ParamSpec):
        return _OPERATIONS[node.op].format(param=member(node.value), args=", ".join(args))
    template = _OPERATIONS.get(node.op) or _OPERATIONS[node.op, node.args[-1].kind]
    return template.format(**dict(zip("abc", args, strict=False)))


def _literal(value: Value) -> str:
    """A constant; negative ones are in brackets, for what may stand before them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    assert isinstance(value, (int, float))
    text = str(value) if isinstance(value, int) else _float_literal(value)
    return f"({text})" if text.startswith("-") else text


def _float_literal(value: float) -> str:
    """The float32 nearest to a number, with as few digits as name it."""
    try:
        rounded = _float32(value)
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if not math.isfinite(rounded):
        return "kNan" if math.isnan(rounded) else "kInf" if rounded > 0 else "kMinusInf"
    shorter = (float(f"{rounded:.{digits}g}") for digits in range(1, 10))
    return f"{next(x for x in shorter if _float32(x) == rounded)!r}f"


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
