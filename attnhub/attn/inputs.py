"""Checks of what ``run()`` gets: queries, caches, scales, run-time parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnhub.attn.kv import KVLayout, Paged, Scales
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
    if not isinstance(given, Scales):
        check.fail(f"scales is a {type(given).__name__}, needs Scales(q=..., k=..., v=...)")
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
        check.no_grad(value, name=name)
    elif not isinstance(value, (int, float)):
        check.fail(f"{name} is a {type(value).__name__}, needs a number or a float32 tensor")


def params(
    given: Mapping[str, Tensor | float],
    variant: Variant,
    num_qo_heads: int,
    device: torch.device,
    *,
    complete: bool = True,
) -> Mapping[str, Tensor | float]:
    """Check run-time parameters: each that the variant names and no other.

    With ``complete=False`` some may be missing, as in ``plan()``.

    Raises:
        InvalidArgument: one is missing, unknown, or of the wrong rank, dtype or device.
    """
    mapping(given)
    specs = {spec.name: spec for spec in variant.params}
    missing = complete and any(name not in given for name in specs)
    if missing or any(name not in specs for name in given):
        asked = ", ".join(map(str, specs.values())) or "none"
        check.fail(
            f"params has {', '.join(map(str, given)) or 'nothing'}; "
            f"this variant takes exactly: {asked}"
        )
    for name, value in given.items():
        _param(value, specs[name], device)
        per_head = name in ("alibi_slopes", "sinks")
        if per_head and isinstance(value, Tensor) and value.numel() != num_qo_heads:
            check.fail(f"params[{name!r}] has {value.numel()} elements, needs [{num_qo_heads}]")
    return given


def mapping(given: Mapping[str, Tensor | float]) -> None:
    """Require a mapping of run-time parameters."""
    if not isinstance(given, Mapping):
        check.fail(f"params is a {type(given).__name__}, needs a dict of names to values")


def _param(value: Tensor | float, spec: ParamSpec, device: torch.device) -> None:
    name = f"params[{spec.name!r}]"
    if not isinstance(value, Tensor):
        if spec.kind == "tensor":
            check.fail(f"{name} is a {type(value).__name__}, needs a {spec.dtype} tensor")
        whole = spec.dtype == "int32"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            number = "an integer" if whole else "a number"
            check.fail(
                f"{name} is a {type(value).__name__}, needs {number} or a 0-d {spec.dtype} tensor"
            )
        return
    check.dtype(value, name, (check.dtype_of(spec.dtype),))
    if value.dim() != spec.ndim:
        check.fail(f"{name} has {value.dim()} dimensions, needs {spec.ndim}")
    check.device(value, name, device, "this attention")
    check.no_grad(value, name=name)


def flatten(
    given: Scales, values: Mapping[str, Tensor | float]
) -> tuple[list[Tensor | None], list[float], list[str], list[Tensor], list[float]]:
    """Scales and parameters as a torch op takes them; :func:`unflatten` is the inverse.

    Parameters go by their names, tensors first: none is dropped that the op does not know.
    """
    if not isinstance(given, Scales):
        check.fail(f"scales is a {type(given).__name__}, needs Scales(q=..., k=..., v=...)")
    mapping(values)
    tensors = [name for name, value in values.items() if isinstance(value, Tensor)]
    numbers = [name for name in values if name not in tensors]
    for name in numbers:
        if not isinstance(values[name], (int, float)):
            kind = type(values[name]).__name__
            check.fail(f"params[{name!r}] is a {kind}, needs a number or a tensor")
    for name in tensors:  # the op itself sees tensors without their history
        check.no_grad(values[name], name=f"params[{name!r}]")  # type: ignore[arg-type]
    return (
        *split_scales(q=given.q, k=given.k, v=given.v),
        [*tensors, *numbers],
        [values[name] for name in tensors],  # type: ignore[misc]
        [values[name] for name in numbers],  # type: ignore[misc]
    )


def unflatten(
    scale_tensors: Sequence[Tensor | None],
    scale_values: Sequence[float],
    names: Sequence[str],
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
) -> tuple[Scales, Mapping[str, Tensor | float]]:
    """Scales and parameters from what a torch op was given."""
    values: list[Tensor | float] = [*tensors, *numbers]
    named = dict(zip(names, values, strict=True))
    return Scales(*join_scales(scale_tensors, scale_values)), named


def split_scales(**scales: Tensor | float) -> tuple[list[Tensor | None], list[float]]:
    """Named scales as a torch op takes them; :func:`join_scales` is the inverse.

    Raises:
        InvalidArgument: one is neither a tensor nor a number, so that no op could take it.
    """
    for name, value in scales.items():
        if not isinstance(value, (Tensor, int, float)):
            check.fail(
                f"scales.{name} is a {type(value).__name__}, needs a number or a float32 tensor"
            )
        if isinstance(value, Tensor):
            check.no_grad(value, name=f"scales.{name}")
    return (
        [s if isinstance(s, Tensor) else None for s in scales.values()],
        [1.0 if isinstance(s, Tensor) else float(s) for s in scales.values()],
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


def cache(x: Tensor, name: str, layout: Paged, inner: tuple[int, int], *, whole: bool) -> None:
    """Require the shape of a paged cache, whole or K or V alone.

    Args:
        x: the tensor as the caller gave it.
        name: what the caller calls it.
        layout: of the constructor.
        inner: KV heads and head dim.
        whole: whether it holds K and V in its dimension 1.
    """
    heads, dim = inner
    orders = {"NHD": (layout.page_size, heads), "HND": (heads, layout.page_size)}
    lead: tuple[int | str, ...] = ("pages", 2) if whole else ("pages",)
    if tuple(x.shape[1:]) == (*lead[1:], *orders[layout.layout], dim):
        return
    needed = check.shape_text((*lead, *orders[layout.layout], dim))
    text = f"{name} has shape {list(x.shape)}, needs {needed} for {layout} and {heads} KV heads"
    other = "HND" if layout.layout == "NHD" else "NHD"
    if tuple(x.shape[1:]) == (*lead[1:], *orders[other], dim):
        text += f'; this is the {other} order: construct with Paged({layout.page_size}, "{other}")'
    check.fail(text)


def split_cache(kv: Tensor | tuple[Tensor, Tensor], layout: KVLayout) -> tuple[Tensor, Tensor]:
    """K and V from a (K, V) tuple or from one paged cache tensor whose dimension 1 is [K, V]."""
    if isinstance(kv, Tensor):
        if not isinstance(layout, Paged):
            check.fail(
                f"kv is one tensor of shape {list(kv.shape)}, but kv={layout} takes a tuple (k, v)"
            )
        if kv.dim() != 5 or kv.shape[1] != 2:
            check.fail(
                f"kv has shape {list(kv.shape)}, needs [pages, 2, page_size, kv_heads, dim] "
                "(or HND), or a tuple (k, v)"
            )
        k, v = kv.unbind(1)
        return k, v
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        check.fail(f"kv is a {type(kv).__name__}, needs one cache tensor or a tuple (k, v)")
    for name, x in zip("kv", kv, strict=True):
        check.is_tensor(x, name)
    return kv[0], kv[1]
