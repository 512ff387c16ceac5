"""Checks of what ``run()`` gets: queries, caches, scales, run-time parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnhub.attn.kv import Scales
from attnhub.core import check
from attnhub.errors import InvalidArgument
from attnhub.variant import ParamSpec, Variant

NO_SCALES = Scales()
NO_PARAMS: Mapping[str, Tensor | float] = {}


def scales(given: Scales, num_qo_heads: int, num_kv_heads: int, device: torch.device) -> Scales:
    """Check numbers, one-element and per-head float32 tensors.

    Raises:
        InvalidArgument: another shape, dtype or device.
    """
    for name, heads in (("q", num_qo_heads), ("k", num_kv_heads), ("v", num_kv_heads)):
        value = getattr(given, name)
        scale(value, f"scales.{name}", heads)
        if isinstance(value, Tensor):
            check.device(value, f"scales.{name}", device, "q")
    return given


def scale(value: Tensor | float, name: str, heads: int | None = None) -> None:
    """Check one scale: a number, a one-element float32 tensor or, with ``heads``, one per head."""
    if isinstance(value, Tensor):
        check.dtype(value, name, (torch.float32,))
        if value.numel() != 1 and tuple(value.shape) != (heads,):
            accepted = "one element" if heads is None else f"one element or [{heads}]"
            check.fail(f"{name} has shape {list(value.shape)}, needs {accepted}")
    elif not isinstance(value, (int, float)):
        check.fail(f"{name} is a {type(value).__name__}, needs a number or a float32 tensor")


def params(
    given: Mapping[str, Tensor | float], variant: Variant, num_qo_heads: int, device: torch.device
) -> Mapping[str, Tensor | float]:
    """Check that exactly the run-time parameters that the variant names are there.

    Raises:
        InvalidArgument: one is missing, unknown, or of the wrong rank, dtype or device.
    """
    specs = {spec.name: spec for spec in variant.params}
    missing = [str(spec) for name, spec in specs.items() if name not in given]
    unknown = [name for name in given if name not in specs]
    if missing or unknown:
        asked = ", ".join(map(str, specs.values())) or "none"
        check.fail(
            f"params has {', '.join(given) or 'nothing'}; this variant takes exactly: {asked}"
        )
    for name, spec in specs.items():
        _param(given[name], spec, device)
        value = given[name]
        per_head = name in ("alibi_slopes", "sinks")
        if per_head and isinstance(value, Tensor) and value.numel() != num_qo_heads:
            check.fail(f"params[{name!r}] has {value.numel()} elements, needs [{num_qo_heads}]")
    return given


def _param(value: Tensor | float, spec: ParamSpec, device: torch.device) -> None:
    name = f"params[{spec.name!r}]"
    if spec.kind == "scalar":
        if isinstance(value, Tensor) or not isinstance(value, (int, float)):
            check.fail(f"{name} is a {type(value).__name__}, needs a number")
        return
    if not isinstance(value, Tensor):
        check.fail(f"{name} is a {type(value).__name__}, needs a {spec.dtype} tensor")
    check.dtype(value, name, (check.dtype_of(spec.dtype),))
    if value.dim() != spec.ndim:
        check.fail(f"{name} has {value.dim()} dimensions, needs {spec.ndim}")
    check.device(value, name, device, "this attention")


def flatten(
    given: Scales, values: Mapping[str, Tensor | float], variant: Variant
) -> tuple[list[Tensor | None], list[float], list[Tensor], list[float]]:
    """Scales and parameters as a torch op takes them; :func:`unflatten` is the inverse."""
    named = [values[spec.name] for spec in variant.params]
    return (
        *split_scales(given.q, given.k, given.v),
        [p for p in named if isinstance(p, Tensor)],
        [float(p) for p in named if not isinstance(p, Tensor)],
    )


def unflatten(
    flat: tuple[Sequence[Tensor | None], Sequence[float], Sequence[Tensor], Sequence[float]],
    variant: Variant,
) -> tuple[Scales, Mapping[str, Tensor | float]]:
    """Scales and parameters from what a torch op was given."""
    scale_tensors, scale_values, tensors, scalars = flat
    tensor, scalar = iter(tensors), iter(scalars)
    named: dict[str, Tensor | float] = {}
    for spec in variant.params:
        value = next(tensor) if spec.kind == "tensor" else next(scalar)
        named[spec.name] = int(value) if spec.dtype == "int32" and spec.kind == "scalar" else value
    return Scales(*join_scales(scale_tensors, scale_values)), named


def split_scales(*scales: Tensor | float) -> tuple[list[Tensor | None], list[float]]:
    """Scales as a torch op takes them; :func:`join_scales` is the inverse."""
    return (
        [s if isinstance(s, Tensor) else None for s in scales],
        [1.0 if isinstance(s, Tensor) else float(s) for s in scales],
    )


def join_scales(
    tensors: Sequence[Tensor | None], numbers: Sequence[float]
) -> tuple[Tensor | float, ...]:
    """Scales from what a torch op was given."""
    return tuple(n if t is None else t for t, n in zip(tensors, numbers, strict=True))


def group(num_qo_heads: int, num_kv_heads: int) -> None:
    """Check that the heads divide."""
    for name, value in (("num_qo_heads", num_qo_heads), ("num_kv_heads", num_kv_heads)):
        if not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"{name}={value!r}: needs an integer >= 1")
    if num_qo_heads % num_kv_heads:
        raise InvalidArgument(
            f"num_qo_heads={num_qo_heads} is no multiple of num_kv_heads={num_kv_heads}"
        )


def split_cache(kv: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """K and V from a (K, V) tuple or from one cache tensor whose dimension 1 is [K, V]."""
    if isinstance(kv, Tensor):
        if kv.dim() != 5 or kv.shape[1] != 2:
            check.fail(
                f"kv has shape {list(kv.shape)}, needs [pages, 2, page_size, kv_heads, dim] "
                "(or HND), or a tuple (k, v)"
            )
        k, v = kv.unbind(1)
        return k, v
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        check.fail(f"kv is a {type(kv).__name__}, needs one cache tensor or a tuple (k, v)")
    return kv[0], kv[1]
