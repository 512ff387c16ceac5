"""Symbols: what a mod receives instead of numbers, and the run-time parameters it may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from attnhub.errors import TraceError
from attnhub.variant.expr import Expr, apply, const
from attnhub.variant.functions import CASTS, FUNCTIONS, Function, call, power
from attnhub.variant.params import DTYPE_KINDS, ParamSpec
from attnhub.variant.text import to_text


def _refuse_value(instead: str) -> Callable[[Symbol], NoReturn]:
    def method(self: Symbol) -> NoReturn:
        raise TraceError(
            f"the mod asks for the value of {to_text(self.expr)}, but a mod is traced once and "
            f"for all positions, so it has no value: {instead}"
        )

    return method


class Symbol:
    """What a mod receives: an expression that operators and torch functions extend.

    Kinds: ints and bools promote to float where they meet one; `/` gives a float; `//` and `%` take
    ints and round down; `& | ^ ~` are logical on bools and bitwise on ints; comparisons give bools.
    """

    __slots__ = ("expr",)
    # numpy would otherwise take a symbol on the right of its numbers for an array of objects.
    __array_ufunc__ = None
    # `==` builds an expression, so a symbol cannot be a key.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __repr__(self) -> str:
        return f"Symbol({to_text(self.expr)})"

    def __add__(self, other: Any) -> Symbol:
        return _operate("add", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return _operate("add", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return _operate("sub", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return _operate("sub", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return _operate("mul", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return _operate("mul", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return _operate("div", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return _operate("div", other, self)

    def __floordiv__(self, other: Any) -> Symbol:
        return _operate("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Symbol:
        return _operate("floordiv", other, self)

    def __mod__(self, other: Any) -> Symbol:
        return _operate("mod", self, other)

    def __rmod__(self, other: Any) -> Symbol:
        return _operate("mod", other, self)

    def __pow__(self, other: Any) -> Symbol:
        return Symbol(power(lift(self), lift(other)))

    def __rpow__(self, other: Any) -> Symbol:
        return Symbol(power(lift(other), lift(self)))

    def __neg__(self) -> Symbol:
        return _operate("neg", self)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return _operate("abs", self)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return _operate("eq", self, other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return _operate("ne", self, other)

    def __lt__(self, other: Any) -> Symbol:
        return _operate("lt", self, other)

    def __le__(self, other: Any) -> Symbol:
        return _operate("le", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return _operate("gt", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return _operate("ge", self, other)

    def __and__(self, other: Any) -> Symbol:
        return _operate("and", self, other)

    def __rand__(self, other: Any) -> Symbol:
        return _operate("and", other, self)

    def __or__(self, other: Any) -> Symbol:
        return _operate("or", self, other)

    def __ror__(self, other: Any) -> Symbol:
        return _operate("or", other, self)

    def __xor__(self, other: Any) -> Symbol:
        return _operate("xor", self, other)

    def __rxor__(self, other: Any) -> Symbol:
        return _operate("xor", other, self)

    def __invert__(self) -> Symbol:
        return _operate("not", self)

    __bool__ = _refuse_value("write torch.where(...) for if, and & | ~ for and, or, not")
    __int__ = _refuse_value("write .int() to convert")
    __float__ = _refuse_value("write .float() to convert, and torch.* for math.*")
    __index__ = _refuse_value("declare a TensorParam to look a value up by an index")

    def __getattr__(self, name: str) -> Any:
        """Return the method of that name: those of `FUNCTIONS` except where, and conversions."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "to":
            return self._to
        function = {**FUNCTIONS, **CASTS}.get(name)
        if function is None or name == "where":
            methods = sorted({*FUNCTIONS, *CASTS, "to"} - {"where"})
            raise TraceError(
                f"a mod used .{name}, which a symbol does not have; it has {', '.join(methods)}"
            )
        return lambda *args, **kwargs: _call(f".{name}()", function, (self, *args), kwargs)

    def _to(self, dtype: Any) -> Symbol:
        """Convert to the kind of a torch dtype; its width is dropped, as a mod has one per kind."""
        name = str(dtype).removeprefix("torch.")
        kind = {**DTYPE_KINDS, "float64": "float"}.get(name)
        if kind is None:
            raise TraceError(
                f".to({dtype!r}) does not exist in a mod; "
                "give torch.float32, torch.int64 or torch.bool"
            )
        return _call(f".to({name})", CASTS[kind], (self,), {})

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Symbol:
        """Translate torch's own functions, as in `torch.tanh(score)`."""
        kwargs = kwargs or {}
        for operand in (*args, *kwargs.values()):
            if not isinstance(operand, Symbol):
                _refuse_array(operand)
        function = FUNCTIONS.get(func.__name__)
        if function is None:
            from torch.overrides import resolve_name

            raise TraceError(
                f"{resolve_name(func) or func.__name__} cannot be used in a mod; "
                f"the torch functions that can are {', '.join(sorted(FUNCTIONS))}"
            )
        return _call(f"torch.{func.__name__}", function, args, kwargs)


@dataclass(frozen=True, slots=True)
class TensorParam:
    """A run-time tensor that a mod looks values up in: `bias[h, kv_idx - q_idx + 512]`.

    The value is given as `params={"bias": tensor}` at plan or run, has exactly `ndim` dimensions
    and exactly `dtype` ("float32", "float16", "bfloat16", "int32", "int64" or "bool").

    Raises:
        InvalidArgument: a bad name, rank or dtype.
        TraceError: on indexing with another number of indices, or with anything but ints.

    Example:
        >>> document = TensorParam("document", ndim=2, dtype="int32")
        >>> def same_document(b, h, q_idx, kv_idx):
        ...     return document[b, q_idx] == document[b, kv_idx]
    """

    name: str
    ndim: int
    dtype: str = "float32"

    # Python would otherwise iterate by indexing 0, 1, 2, ... without end.
    __iter__ = None

    def __post_init__(self) -> None:
        _ = self.spec  # building it checks the fields

    @property
    def spec(self) -> ParamSpec:
        """What the value must look like."""
        return ParamSpec(name=self.name, kind="tensor", ndim=self.ndim, dtype=self.dtype)

    def __getitem__(self, index: Any) -> Symbol:
        """Return one element; `index` is one int expression per dimension."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != self.ndim:
            raise TraceError(
                f"{self.name} has ndim={self.ndim} and was indexed with {len(indices)} "
                f"{'index' if len(indices) == 1 else 'indices'}; give one int for each dimension"
            )
        for one in indices:
            whole = isinstance(one, int) and not isinstance(one, bool) and one >= 0
            if not (whole or (isinstance(one, Symbol) and one.expr.kind == "int")):
                raise TraceError(
                    f"{self.name} was indexed with {_describe(one)}; give an int expression or an "
                    "int >= 0 (x.int() converts; there are no slices, negative ints or masks)"
                )
        return Symbol(Expr("index", tuple(lift(one) for one in indices), self.spec))

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse: torch functions apply to elements."""
        raise TraceError(f"{func.__name__} was given a whole TensorParam; index it first")


class ScalarParam(Symbol):
    """A run-time number that a mod computes with: `alpha * score`.

    The value is given as `params={"alpha": 0.5}` at plan or run, as a Python number or as a 0-d
    tensor of that dtype on the attention's device. Give what changes from step to step as a tensor:
    compiled code is compiled anew for each Python number, and a captured graph goes on using the
    one it saw. `dtype` is "float32" or "int32"; the latter takes no float.

    Raises:
        InvalidArgument: a bad name or dtype.

    Example:
        >>> alpha = ScalarParam("alpha")
        >>> def scaled(score, b, h, q_idx, kv_idx):
        ...     return alpha * score
    """

    __slots__ = ()

    def __init__(self, name: str, dtype: str = "float32") -> None:
        super().__init__(
            Expr("scalar", value=ParamSpec(name=name, kind="scalar", ndim=0, dtype=dtype))
        )


def lift(value: Any) -> Expr:
    """Return the node of an operand: a symbol or a Python number.

    Raises:
        TraceError: anything else; for tensors the message says what to declare.
    """
    if isinstance(value, Symbol):
        return value.expr
    if isinstance(value, (bool, int, float)):
        return const(value)
    if isinstance(value, TensorParam):
        raise TraceError(
            f"{_describe(value)} was used whole; index it, with one int expression for each of its "
            f"{value.ndim} dimensions"
        )
    _refuse_array(value)
    raise TraceError(
        f"a mod computes with symbols and Python numbers, and this one used {_describe(value)}"
    )


def _describe(value: Any) -> str:
    if isinstance(value, Symbol):
        return f"the {value.expr.kind} expression {to_text(value.expr)}"
    return f"{value!r} of type {type(value).__name__}"


def _refuse_array(value: Any) -> None:
    """Raise TraceError for a tensor or array of any library."""
    if isinstance(value, (bool, int, float)) or not (
        hasattr(value, "shape") and hasattr(value, "dtype")
    ):
        return
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    declare = f'name = TensorParam("name", ndim={len(shape)}, dtype="{dtype}") and index it'
    if not shape:
        declare = 'name = ScalarParam("name") (or use a Python number, if it never changes)'
    raise TraceError(
        f"the mod uses a {dtype} {type(value).__name__} of shape {shape} from its surroundings. "
        f"A variant is structure only and keeps no tensors: declare {declare}, and give the value "
        'as params={"name": ...} at plan or run'
    )


def _operate(op: str, *operands: Any) -> Symbol:
    return Symbol(apply(op, *(lift(operand) for operand in operands)))


def _call(label: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """Apply a function of `FUNCTIONS`; None and inplace=False mean what they mean in torch."""
    lifted = [None if arg is None else lift(arg) for arg in args]
    named = {
        key: None if value is None else lift(value)
        for key, value in kwargs.items()
        if not (key == "inplace" and value is False)
    }
    return Symbol(call(function, label, lifted, named))
