"""Checks of callers' tensors. Each error says what was given, what is accepted, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch

from attnhub.core.near import did_you_mean
from attnhub.errors import InvalidArgument

#: torch dtype <-> the name used in problems, reports and files.
DTYPE_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int64",
        "int32",
        "int8",
        "uint8",
        "bool",
    )
}
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def fail(text: str) -> NoReturn:
    """Raise InvalidArgument."""
    raise InvalidArgument(text)


def dtype_of(value: torch.dtype | str, name: str = "dtype") -> torch.dtype:
    """A torch dtype from itself or from its name."""
    if isinstance(value, str):
        if value not in _DTYPES:
            known = ", ".join(_DTYPES)
            fail(f"{name}={value!r} is no dtype; use one of {known}{did_you_mean(value, _DTYPES)}")
        return _DTYPES[value]
    return value


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def shape_text(shape: Sequence[int | str | None]) -> str:
    """``[tokens, 8, 64]``-like text of an expected or given shape."""
    return "[" + ", ".join("any" if s is None else str(s) for s in shape) + "]"


def is_tensor(x: object, name: str) -> None:
    """Require a tensor."""
    if not isinstance(x, torch.Tensor):
        fail(f"{name} must be a torch.Tensor, got {type(x).__name__}")


def dtype(x: torch.Tensor, name: str, accepted: Iterable[torch.dtype]) -> None:
    """Require one of the accepted dtypes."""
    accepted = tuple(accepted)
    if x.dtype not in accepted:
        names = " or ".join(map(dtype_name, accepted))
        fail(f"{name} has dtype {dtype_name(x.dtype)}, needs {names}; convert it before the call")


def integer(value: object, name: str, low: int, high: int | None = None) -> None:
    """Require an int from ``low`` to ``high``; a bool is none."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < low
        or (high is not None and value > high)
    ):
        fail(f"{name}={value!r}: needs an integer " + _span(low, high))


def _span(low: int, high: int | None) -> str:
    return f">= {low}" if high is None else f"from {low} to {high}"


def pair(values: object, name: str, parts: str) -> None:
    """Require a tuple or list of two tensors; ``parts`` says which."""
    if not isinstance(values, (tuple, list)):
        fail(f"{name} is a {type(values).__name__}, needs a tuple {parts} of two tensors")
    if len(values) != 2:
        fail(f"{name} has {len(values)} entries, needs a tuple {parts} of two tensors")
    for i, value in enumerate(values):
        is_tensor(value, f"{name}[{i}]")


def shape(x: torch.Tensor, name: str, expected: Sequence[int | str | None]) -> None:
    """Require a shape; strings and None in ``expected`` stand for any size."""
    fits = x.dim() == len(expected) and all(
        not isinstance(want, int) or got == want
        for got, want in zip(x.shape, expected, strict=False)
    )
    if not fits:
        fail(f"{name} has shape {list(x.shape)}, needs {shape_text(expected)}")


def device(x: torch.Tensor, name: str, expected: torch.device, like: str) -> None:
    """Require the device of another tensor or of the constructor."""
    if x.device != expected:
        fail(f"{name} is on {x.device}, but {like} is on {expected}; move one of them")


def last_contiguous(x: torch.Tensor, name: str) -> None:
    """Require stride 1 in the last dimension."""
    if x.dim() and x.shape[-1] > 1 and x.stride(-1) != 1 and x.numel():
        fail(
            f"{name} has stride {x.stride(-1)} in its last dimension, needs 1; "
            f"call {name}.contiguous()"
        )


def output(
    out: torch.Tensor,
    name: str,
    size: tuple[int, ...],
    kind: torch.dtype,
    like: torch.Tensor,
    like_name: str,
) -> None:
    """Require what an op may write to: shape, dtype, the device of ``like``, stride, no grad."""
    if not isinstance(out, torch.Tensor):
        is_tensor(out, name)
    if out.shape != size:
        shape(out, name, size)
    if out.dtype != kind:
        dtype(out, name, (kind,))
    if out.device != like.device:
        device(out, name, like.device, like_name)
    if size and out.stride(-1) != 1:
        last_contiguous(out, name)
    if out.requires_grad:
        no_grad(out, name=name)


def no_grad(*tensors: torch.Tensor, name: str = "an input") -> None:
    """Refuse tensors that ask for a gradient: ops are forward only."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        fail(f"AttnHub ops are forward only and {name} requires grad; use torch.no_grad()")
