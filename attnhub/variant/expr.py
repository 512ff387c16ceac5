"""The expression language of mods: one closed table of operations, and the node they build.

A mod (a user's Python function) becomes a graph of `Expr` nodes. Each emitter (torch, CUDA C++,
Triton) translates exactly the operations in `OPS`, so the table is small on purpose: whatever can
be written with other operations (clamp, relu, silu, sign, softplus) is written so while tracing.

Kinds are "float", "int" and "bool". Every conversion is a node of its own (`to_float`, `to_int`),
so an emitter never has to promote anything: the arguments of a node have exactly the kinds its
table row names.

* float: the dtype of the evaluation, float32 on devices. `minimum` and `maximum` of a NaN are
  unspecified.
* int: at least 32 bits. Overflow is unspecified, and so is a division by zero.
* A mod may be evaluated for pairs that a mask hides and for lanes past the end of a sequence.
  Device emitters clamp each index of `index` to the tensor, so that such lanes read valid memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from attnhub.errors import InvalidArgument, TraceError
from attnhub.variant.params import Kind, ParamSpec

Value = bool | int | float | str | ParamSpec | None
Signatures = Mapping[tuple[Kind, ...], Kind]

MAX_INT = 2**31 - 1
_WIDTH: Mapping[Kind, int] = {"bool": 0, "int": 1, "float": 2}
_KIND_OF_TYPE: Mapping[type, Kind] = {bool: "bool", int: "int", float: "float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation: how many arguments, which kinds they may have and give, and what it computes.

    `signatures` maps argument kinds to the result kind, narrowest first. It is empty for leaves and
    for `index`, whose kind comes from their value. `arity` is None where the count depends on the
    value.
    """

    name: str
    arity: int | None
    signatures: Signatures
    doc: str


def _same(arity: int, *kinds: Kind, result: Kind | None = None) -> Signatures:
    """Signatures whose arguments have one kind, which the result has too unless it is given."""
    return {(kind,) * arity: result or kind for kind in kinds}


def _ops(arity: int | None, signatures: Signatures, **docs: str) -> dict[str, Op]:
    """Rows that share a kind rule; the trailing underscore of a reserved word is dropped."""
    names = {key.rstrip("_"): doc for key, doc in docs.items()}
    frozen = MappingProxyType(dict(signatures))
    return {
        name: Op(name=name, arity=arity, signatures=frozen, doc=doc) for name, doc in names.items()
    }


OPS: Mapping[str, Op] = MappingProxyType(
    {
        **_ops(
            0,
            {},
            const="the Python number in `value`; float constants may be infinite or NaN",
            input="the argument of the mod named by `value`",
            scalar="the run-time scalar described by the ParamSpec in `value`",
        ),
        **_ops(
            None,
            {},
            index="element [args...] of the run-time tensor described by the ParamSpec in `value`",
        ),
        **_ops(1, {("bool",): "float", ("int",): "float"}, to_float="the same number as a float"),
        **_ops(
            1,
            {("bool",): "int", ("float",): "int"},
            to_int="the number rounded towards zero; unspecified if it does not fit",
        ),
        **_ops(
            2,
            _same(2, "int", "float"),
            add="a + b",
            sub="a - b",
            mul="a * b",
            minimum="the smaller of a and b",
            maximum="the larger of a and b",
        ),
        **_ops(1, _same(1, "int", "float"), neg="-a", abs="the absolute value of a"),
        **_ops(
            2,
            _same(2, "int"),
            floordiv="floor of the exact quotient a / b",
            mod="a - floordiv(a, b) * b, which has the sign of b",
        ),
        **_ops(2, _same(2, "float"), div="a / b", pow="a to the power of b"),
        **_ops(
            1,
            _same(1, "float"),
            exp="e to the power of a",
            exp2="2 to the power of a",
            log="natural logarithm of a",
            log1p="natural logarithm of 1 + a, accurate near 0",
            log2="base-2 logarithm of a",
            sqrt="square root of a",
            rsqrt="1 / sqrt(a)",
            sin="sine of a radians",
            cos="cosine of a radians",
            tanh="hyperbolic tangent of a",
            sigmoid="1 / (1 + exp(-a)), without overflow",
            erf="error function of a",
            floor="largest whole number <= a, as a float",
        ),
        **_ops(
            2,
            _same(2, "bool", "int", "float", result="bool"),
            eq="a equals b",
            ne="a differs from b",
        ),
        **_ops(
            2,
            _same(2, "int", "float", result="bool"),
            lt="a < b",
            le="a <= b",
            gt="a > b",
            ge="a >= b",
        ),
        **_ops(
            2,
            _same(2, "bool", "int"),
            and_="logical and of bools, bitwise and of ints",
            or_="logical or of bools, bitwise or of ints",
            xor="logical exclusive or of bools, bitwise exclusive or of ints",
        ),
        **_ops(1, _same(1, "bool", "int"), not_="logical not of a bool, bitwise not of an int"),
        **_ops(
            3,
            {("bool", kind, kind): kind for kind in _WIDTH},
            where="b where the bool a holds, else c; a branch not taken may be evaluated",
        ),
    }
)
"""Every operation of the language, by name."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr:
    """One immutable node: an operation of `OPS`, its arguments, and a value for leaves and `index`.

    `kind` and `digest` are derived. The digest covers the whole graph below the node, so equality
    and hash cost O(1) however much is shared, and mean the same structure in every process.

    Raises:
        InvalidArgument: an unknown operation, or arguments or a value that its table row does not
            admit.
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: Value = None
    kind: Kind = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _result_kind(self))
        content = (self.op, self.kind, repr(self.value), *(arg.digest for arg in self.args))
        object.__setattr__(self, "digest", hashlib.sha256(repr(content).encode()).hexdigest())

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Expr) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Expr({self.op!r}, kind={self.kind!r}, args={len(self.args)}, value={self.value!r})"


INPUT_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "score": "float",
        "x": "float",
        "b": "int",
        "h": "int",
        "h_kv": "int",
        "q_idx": "int",
        "kv_idx": "int",
        "d": "int",
    }
)
"""Every argument of a mod: a value (score, x), or an index of request, head, position, channel."""


def _result_kind(node: Expr) -> Kind:
    """Kind of a node whose arguments already have the kinds of a table row."""
    op, value, kinds = node.op, node.value, tuple(arg.kind for arg in node.args)
    if op not in OPS:
        raise InvalidArgument(f"operation {op!r} does not exist; use one of {', '.join(OPS)}")
    result: Kind | None = None
    if op == "const" and not kinds:
        result = _KIND_OF_TYPE.get(type(value))
    elif op == "input" and not kinds and isinstance(value, str):
        result = INPUT_KINDS.get(value)
    elif op == "scalar" and not kinds and isinstance(value, ParamSpec) and value.kind == "scalar":
        result = value.element_kind
    elif op == "index" and isinstance(value, ParamSpec) and value.kind == "tensor":
        result = value.element_kind if kinds == ("int",) * value.ndim else None
    elif value is None:
        result = OPS[op].signatures.get(kinds)
    if result is None:
        raise InvalidArgument(
            f"operation {op!r} does not take ({', '.join(kinds)}) with value {value!r}; "
            f"it computes: {OPS[op].doc}"
        )
    return result


def const(value: float) -> Expr:
    """Return the node of a Python number; subclasses such as numpy's float64 become plain numbers.

    Raises:
        TraceError: an int that does not fit in 32 bits.
    """
    if not isinstance(value, int):
        return Expr("const", value=float(value))
    if not -MAX_INT <= value <= MAX_INT:
        raise TraceError(
            f"the integer constant {value} does not fit in 32 bits; "
            f"use values from {-MAX_INT} to {MAX_INT}, or a float"
        )
    return Expr("const", value=value if isinstance(value, bool) else int(value))


def cast(node: Expr, kind: Kind) -> Expr:
    """Return `node` converted to `kind`: constants at once, everything else by a node."""
    if node.kind == kind:
        return node
    if kind == "bool":
        return apply("ne", node, const(0))
    if node.op == "const" and isinstance(node.value, (bool, int)):
        return const(float(node.value) if kind == "float" else int(node.value))
    return Expr(f"to_{kind}", (node,))


def apply(op: str, *args: Expr) -> Expr:
    """Return `op` of `args`, widened (bool to int to float) to the narrowest table row that fits.

    Bools alone are never widened: torch would read `mask + mask` as a logical or, others as a
    count.

    Raises:
        TraceError: no row of the table takes these kinds.

    Example:
        >>> apply("div", const(1), const(2)).args[0]
        Expr('const', kind='float', args=0, value=1.0)
    """
    given = tuple(arg.kind for arg in args)
    for row in OPS[op].signatures:
        fits = len(row) == len(given) and all(
            _WIDTH[kind] <= _WIDTH[wanted] for kind, wanted in zip(given, row, strict=True)
        )
        if fits and (given == row or set(given) != {"bool"}):
            widened = tuple(cast(arg, kind) for arg, kind in zip(args, row, strict=True))
            return _fold(op, widened) or Expr(op, widened)
    rows = " or ".join(f"({', '.join(row)})" for row in OPS[op].signatures)
    raise TraceError(
        f"{op} does not take ({', '.join(given)}); it takes {rows}. A bool becomes a number by "
        "torch.where(mask, 1.0, 0.0) or mask.int(), a number a bool by a comparison, "
        "a float an int by x.int()"
    )


def _fold(op: str, args: tuple[Expr, ...]) -> Expr | None:
    """Drop a constant bool from and/or; nothing else is simplified, compilers do it better."""
    if op not in ("and", "or"):
        return None
    neutral = op == "and"
    for one, other in (args, args[::-1]):
        if one.op == "const" and one.kind == "bool":
            return other if one.value is neutral else one
    return None


def topological(root: Expr) -> tuple[Expr, ...]:
    """Return every distinct node from the leaves to `root`, arguments first, in a canonical order.

    Iterative, because a mod with a long loop makes a graph deeper than Python's recursion limit.
    """
    order: dict[Expr, None] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [arg for arg in reversed(node.args) if arg not in order]
        if node in order or not waiting:
            order.setdefault(stack.pop())
        else:
            stack.extend(waiting)
    return tuple(order)


def count_uses(nodes: tuple[Expr, ...]) -> dict[Expr, int]:
    """Return how many argument places each node fills; a node that fills two deserves a name."""
    uses = dict.fromkeys(nodes, 0)
    for arg in chain.from_iterable(node.args for node in nodes):
        uses[arg] += 1
    return uses
