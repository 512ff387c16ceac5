"""What each torch function (or method) of the same name means in a mod, in terms of `OPS`.

The keys of `FUNCTIONS` are torch's names and the parameter names are torch's, so that keyword
arguments work as users write them. What torch composes (clamp, silu, softplus, sign), this module
composes too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from attnhub.errors import TraceError
from attnhub.variant.expr import Expr, apply, cast, const
from attnhub.variant.params import Kind

Function = Callable[..., Expr]

MAX_UNROLLED_POWER = 8

_ONE, _TWENTY = const(1), const(20)


def _unary(op: str) -> Function:
    def function(input: Expr) -> Expr:
        return apply(op, input)

    return function


def _binary(op: str) -> Function:
    def function(input: Expr, other: Expr) -> Expr:
        return apply(op, input, other)

    return function


def _logical(op: str) -> Function:
    def function(input: Expr, other: Expr) -> Expr:
        return apply(op, cast(input, "bool"), cast(other, "bool"))

    return function


def _logical_not(input: Expr) -> Expr:
    return apply("not", cast(input, "bool"))


def _cast(kind: Kind) -> Function:
    def function(input: Expr) -> Expr:
        return cast(input, kind)

    return function


def _where(condition: Expr, input: Expr, other: Expr) -> Expr:
    return apply("where", condition, input, other)


def _clamp(input: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    if min is None and max is None:
        raise TraceError("clamp was given no bound; give min, max or both")
    result = input if min is None else apply("maximum", input, min)
    return result if max is None else apply("minimum", result, max)


def _relu(input: Expr) -> Expr:
    return apply("maximum", input, const(0))


def _sign(input: Expr) -> Expr:
    minus, zero, plus = (cast(const(number), input.kind) for number in (-1, 0, 1))
    rest = apply("where", apply("lt", input, zero), minus, zero)
    return apply("where", apply("gt", input, zero), plus, rest)


def _silu(input: Expr) -> Expr:
    return apply("mul", input, apply("sigmoid", input))


def _softplus(input: Expr, beta: Expr = _ONE, threshold: Expr = _TWENTY) -> Expr:
    scaled = apply("mul", input, cast(beta, "float"))
    smooth = apply("div", apply("log1p", apply("exp", scaled)), beta)
    return apply("where", apply("gt", scaled, threshold), input, smooth)


def _floor(input: Expr) -> Expr:
    return input if input.kind == "int" else apply("floor", input)


def power(input: Expr, exponent: Expr) -> Expr:
    """Return input ** exponent; small constant powers multiply: exact for ints, cheap for floats.

    Raises:
        TraceError: an int to the power of an int, unless the exponent is such a small constant.
    """
    whole = exponent.value if exponent.op == "const" and exponent.kind == "int" else None
    if isinstance(whole, int) and 1 <= whole <= MAX_UNROLLED_POWER:
        result = input
        for _ in range(whole - 1):
            result = apply("mul", result, input)
        return result
    if input.kind == exponent.kind == "int":
        raise TraceError(
            "an int to the power of an int needs a constant exponent from 1 to "
            f"{MAX_UNROLLED_POWER}; make one side a float, such as 2.0 ** h"
        )
    return apply("pow", input, exponent)


_UNARY = (
    "abs",
    "neg",
    "exp",
    "exp2",
    "log",
    "log1p",
    "log2",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
)
_BINARY = ("add", "sub", "mul", "div", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge")

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        **{name: _unary(name) for name in (*_UNARY, "sigmoid", "erf")},
        **{name: _binary(name) for name in _BINARY},
        "floor_divide": _binary("floordiv"),
        "remainder": _binary("mod"),
        **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
        "logical_not": _logical_not,
        "where": _where,
        "clamp": _clamp,
        "floor": _floor,
        "pow": power,
        "relu": _relu,
        "sign": _sign,
        "silu": _silu,
        "softplus": _softplus,
    }
)
"""torch functions a mod may call; all but `where` may also be called as methods."""

CASTS: Mapping[str, Function] = MappingProxyType(
    {"float": _cast("float"), "int": _cast("int"), "long": _cast("int"), "bool": _cast("bool")}
)
"""Methods that convert; floats have one width inside a mod, so `half` and `double` do not exist."""


def call(
    function: Function, label: str, args: Sequence[Expr | None], kwargs: Mapping[str, Expr | None]
) -> Expr:
    """Return function(*args, **kwargs); `label` names it in the error.

    Raises:
        TraceError: the arguments are not those this language takes.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise TraceError(
            f"{label} was called with other arguments than ({names}): {error}"
        ) from None
    return function(*bound.args, **bound.kwargs)
