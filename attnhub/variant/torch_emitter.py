"""Evaluation of a traced mod with torch: the meaning that every other emitter must match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from attnhub.errors import IndexOutOfRange, InvalidArgument
from attnhub.variant.expr import INPUT_KINDS, Expr
from attnhub.variant.graph import Graph
from attnhub.variant.params import ParamSpec

_INT_DTYPES = (torch.int64, torch.int32)

_CALLS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "floordiv": torch.floor_divide,
        "mod": torch.remainder,
        "pow": torch.pow,
        "minimum": torch.minimum,
        "maximum": torch.maximum,
        "neg": torch.neg,
        "abs": torch.abs,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "log": torch.log,
        "log1p": torch.log1p,
        "log2": torch.log2,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "sin": torch.sin,
        "cos": torch.cos,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "floor": torch.floor,
        "eq": torch.eq,
        "ne": torch.ne,
        "lt": torch.lt,
        "le": torch.le,
        "gt": torch.gt,
        "ge": torch.ge,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
        "not": torch.bitwise_not,
        "where": torch.where,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the leaves of a graph are read from."""

    inputs: Mapping[str, Tensor]
    params: Mapping[str, Tensor | float]
    dtype: torch.dtype
    device: torch.device
    visible: Tensor | None


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Tensor | float] | None = None,
    *,
    visible: Tensor | None = None,
) -> Tensor:
    """Return the value of a mod for every element of the broadcast inputs.

    Args:
        graph: a traced mod.
        inputs: one tensor for each input that the graph uses, of shapes that broadcast together:
            score or x in float32 or float64, indices in int64 or int32, for example score [batch,
            heads, qo_len, kv_len] with b [batch, 1, 1, 1], h [heads, 1, 1], q_idx [qo_len, 1] and
            kv_idx [kv_len].
        params: values of the graph's run-time parameters, as their `ParamSpec` says; others are not
            read.
        visible: bool, broadcasts with the inputs; where it is False the result is unspecified, and
            an index out of range is no error there. A caller passes what the other masks keep.

    Returns:
        A tensor of the broadcast shape of `inputs` (it may be an expanded view: do not write to
        it), bool or in the dtype of score or x; without these, floats are float32.

    Raises:
        InvalidArgument: an input or parameter is missing or has the wrong dtype, rank or device.
        IndexOutOfRange: an index of a tensor parameter is out of range, negative included, where
            visible. Finding out reads the result on the host, so on a GPU this function
            synchronises.

    Example:
        >>> from attnhub.variant import trace
        >>> graph = trace("mask_mod", lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
        >>> evaluate(graph, {"q_idx": torch.arange(2)[:, None], "kv_idx": torch.arange(2)})
        tensor([[ True, False],
                [ True,  True]])
    """
    context = _Context(
        inputs=inputs,
        params={} if params is None else params,
        dtype=_float_dtype(graph, inputs),
        device=next((tensor.device for tensor in inputs.values()), torch.device("cpu")),
        visible=visible,
    )
    values: dict[Expr, Tensor] = {}
    for node in graph.nodes:
        values[node] = _value(node, [values[arg] for arg in node.args], context)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in inputs.values()))
    return values[graph.root].expand(shape)


def _float_dtype(graph: Graph, inputs: Mapping[str, Tensor]) -> torch.dtype:
    """Check the given inputs and return the dtype of float arithmetic."""
    result = torch.float32
    for name, tensor in inputs.items():
        if name not in graph.inputs:
            raise InvalidArgument(f"input {name!r} does not exist; give {', '.join(graph.inputs)}")
        floating = INPUT_KINDS[name] == "float"
        accepted = (torch.float32, torch.float64) if floating else _INT_DTYPES
        if tensor.dtype not in accepted:
            raise InvalidArgument(
                f"input {name!r} has dtype {tensor.dtype}; convert it to one of {accepted}"
            )
        result = tensor.dtype if floating else result
    return result


def _value(node: Expr, args: list[Tensor], context: _Context) -> Tensor:
    if node.op in _CALLS:
        return _CALLS[node.op](*args)
    dtype = {"float": context.dtype, "int": torch.int64, "bool": torch.bool}[node.kind]
    if node.op == "index":
        return _look_up(node, args, context).to(dtype)
    if node.op == "scalar":
        return _scalar(node, context).to(dtype)
    if node.op == "const":
        return torch.tensor(node.value, dtype=dtype, device=context.device)
    if node.op == "input":
        if node.value not in context.inputs:
            raise InvalidArgument(f"the mod uses the input {node.value!r}; give a tensor for it")
        return context.inputs[str(node.value)].to(dtype)
    return args[0].to(dtype)


def _param(node: Expr, context: _Context) -> tuple[ParamSpec, Tensor | float]:
    """Spec and checked value of a parameter node; a number passes for a scalar only."""
    spec = node.value
    assert isinstance(spec, ParamSpec)
    if spec.name not in context.params:
        raise InvalidArgument(f"the mod uses the parameter ({spec}); give params[{spec.name!r}]")
    value = context.params[spec.name]
    wanted = (getattr(torch, spec.dtype), spec.ndim, context.device)
    if isinstance(value, Tensor) and (value.dtype, value.ndim, value.device) != wanted:
        raise InvalidArgument(
            f"params[{spec.name!r}] is a {value.dtype} tensor with ndim={value.ndim} on "
            f"{value.device}; the mod takes ({spec}) on {context.device}"
        )
    return spec, value


def _scalar(node: Expr, context: _Context) -> Tensor:
    spec, value = _param(node, context)
    if isinstance(value, Tensor):
        return value
    accepted = (int,) if spec.element_kind == "int" else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise InvalidArgument(
            f"params[{spec.name!r}]={value!r} is of type {type(value).__name__}; "
            f"the mod takes ({spec}), as a Python {accepted[-1].__name__} or a 0-d tensor"
        )
    dtype = torch.int64 if spec.element_kind == "int" else torch.float64
    return torch.tensor(value, dtype=dtype, device=context.device)


def _look_up(node: Expr, indices: Sequence[Tensor], context: _Context) -> Tensor:
    """Elements of a tensor parameter, after a check that every visible index is in range."""
    spec, table = _param(node, context)
    if not isinstance(table, Tensor):
        raise InvalidArgument(
            f"params[{spec.name!r}]={table!r} is of type {type(table).__name__}; "
            f"the mod takes ({spec})"
        )
    safe = []
    for axis, (index, size) in enumerate(zip(indices, table.shape, strict=True)):
        outside = (index < 0) | (index >= size)
        wrong = outside if context.visible is None else outside & context.visible
        if wrong.any():
            worst = index.expand(wrong.shape)[wrong]
            raise IndexOutOfRange(
                f"params[{spec.name!r}] has shape {tuple(table.shape)} and is read at index "
                f"{axis} from {int(worst.min())} to {int(worst.max())}; "
                f"dimension {axis} takes 0 to {size - 1}: give a larger tensor, or clamp in the mod"
            )
        safe.append(index.clamp(0, max(size - 1, 0)))
    return table[tuple(safe)]
