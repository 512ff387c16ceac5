"""Merging attention over disjoint sets of keys.

A state is ``o [tokens, heads, dim]`` (float16, bfloat16 or float32) with ``lse [tokens, heads]``
(float32, natural log), as ``run(..., return_lse=True)`` returns them. Any strides will do, but the
last dimension must be contiguous. A state that saw no key has LSE -inf: it counts for nothing,
whatever its ``o`` holds. Products are formed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.cascade.problem import (
    MergeStateInPlaceProblem,
    MergeStateProblem,
    MergeStatesProblem,
)
from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket


def _key(o: Tensor, *others: Tensor) -> tuple[Any, ...]:
    shape = o.shape
    return o.device, o.dtype, bucket(shape[0]), shape[1:], _contiguous(o, *others)


def _facts(o: Tensor, *others: Tensor) -> dict[str, Any]:
    return {
        "device": devices.describe(o.device),
        "extent": Extent(tokens=o.shape[0]).bucketed(),
        "dtype": check.dtype_name(o.dtype),
        "num_heads": o.shape[-2],
        "head_dim": o.shape[-1],
        "contiguous": _contiguous(o, *others),
    }


def _contiguous(*tensors: Tensor) -> bool:
    return all(tensor.is_contiguous() for tensor in tensors)


_merge_state = FunctionalOp(
    "cascade.merge_state",
    "(Tensor o_a, Tensor lse_a, Tensor o_b, Tensor lse_b, Tensor(a!) out, Tensor(b!) lse) -> ()",
    key=_key,
    problem=lambda *tensors: MergeStateProblem(**_facts(*tensors)),
)
_merge_state_in_place = FunctionalOp(
    "cascade.merge_state_in_place",
    "(Tensor(a!) o, Tensor(b!) lse, Tensor o_b, Tensor lse_b, Tensor? mask) -> ()",
    key=lambda o, lse, o_b, lse_b, mask: (*_key(o, lse, o_b, lse_b), mask is None),
    problem=lambda *tensors: MergeStateInPlaceProblem(
        **_facts(*tensors[:-1]), mask=tensors[-1] is not None
    ),
)
_merge_states = FunctionalOp(
    "cascade.merge_states",
    "(Tensor o, Tensor lse, Tensor(a!) out, Tensor(b!) out_lse) -> ()",
    key=_key,
    problem=lambda *tensors: MergeStatesProblem(**_facts(*tensors), num_states=tensors[0].shape[1]),
)


def merge_state(
    o_a: Tensor,
    lse_a: Tensor,
    o_b: Tensor,
    lse_b: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys.

    Args:
        o_a: ``[tokens, heads, dim]``, output over the first set.
        lse_a: float32 ``[tokens, heads]``, its natural-log LSE.
        o_b: ``[tokens, heads, dim]``, output over the second set, dtype of ``o_a``.
        lse_b: float32 ``[tokens, heads]``.
        out: ``(o, lse)`` to write to, shaped like the inputs; may be one of the two states.

    Returns:
        ``o [tokens, heads, dim]`` in the dtype of ``o_a`` and ``lse [tokens, heads]``; 0 and -inf
        where both sets were empty.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Equivalent PyTorch, where neither set was empty::

        lse = torch.logaddexp(lse_a, lse_b)
        o = o_a * (lse_a - lse).exp()[..., None] + o_b * (lse_b - lse).exp()[..., None]

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Ye et al.,
    "FlashInfer" (2025).

    Example::

        o, lse = merge_state(o_prefix, lse_prefix, o_suffix, lse_suffix)
    """
    _check_state(o_a, lse_a, "_a")
    _check_other(o_b, lse_b, "_b", o_a.shape, o_a)
    if out is None:
        o, lse = torch.empty_like(o_a), torch.empty_like(lse_a)
    else:
        check.pair(out, "out", "(o, lse)")
        o, lse = out
        _check_other(o, lse, " of out", o_a.shape, o_a)
    _merge_state(o_a, lse_a, o_b, lse_b, o, lse)
    return o, lse


def merge_state_(
    o: Tensor, lse: Tensor, o_b: Tensor, lse_b: Tensor, *, mask: Tensor | None = None
) -> None:
    """:func:`merge_state` into its first state, in place.

    Args:
        o: ``[tokens, heads, dim]``, updated.
        lse: float32 ``[tokens, heads]``, updated.
        o_b: ``[tokens, heads, dim]``, output over the second set, dtype of ``o``.
        lse_b: float32 ``[tokens, heads]``.
        mask: bool ``[tokens]``; where False, the second state is ignored and the first stays as it
            is, bit for bit.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Example::

        merge_state_(o, lse, o_suffix, lse_suffix)   # o and lse now cover both sets
    """
    _check_state(o, lse, "")
    _check_other(o_b, lse_b, "_b", o.shape, o)
    if mask is not None:
        check.is_tensor(mask, "mask")
        check.dtype(mask, "mask", (torch.bool,))
        check.shape(mask, "mask", (o.shape[0],))
        check.device(mask, "mask", o.device, "o")
        check.last_contiguous(mask, "mask")
    _merge_state_in_place(o, lse, o_b, lse_b, mask)


def merge_states(
    o: Tensor, lse: Tensor, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over the union of ``n`` disjoint sets of keys.

    Args:
        o: ``[tokens, n, heads, dim]``, output over each set.
        lse: float32 ``[tokens, n, heads]``, natural log.
        out: ``(o, lse)`` to write to.

    Returns:
        ``o [tokens, heads, dim]`` in the dtype of the input and ``lse [tokens, heads]``; 0 and -inf
        where all sets were empty, and everywhere if n is 0.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Example::

        o, lse = merge_states(torch.stack([o_0, o_1], 1), torch.stack([lse_0, lse_1], 1))
    """
    _check_state(o, lse, "", ("tokens", "n", "heads", "dim"))
    tokens, _, heads, dim = o.shape
    if out is None:
        merged, merged_lse = o.new_empty(tokens, heads, dim), lse.new_empty(tokens, heads)
    else:
        check.pair(out, "out", "(o, lse)")
        merged, merged_lse = out
        _check_other(merged, merged_lse, " of out", (tokens, heads, dim), o)
    _merge_states(o, lse, merged, merged_lse)
    return merged, merged_lse


_STATE = ("tokens", "heads", "dim")


def _check_state(o: Tensor, lse: Tensor, suffix: str, axes: tuple[str, ...] = _STATE) -> None:
    """The state that the others are compared with."""
    check.is_tensor(o, f"o{suffix}")
    if o.dtype not in check.FLOATS:
        check.dtype(o, f"o{suffix}", check.FLOATS)
    if o.dim() != len(axes) or not o.shape[-1]:
        needs = check.shape_text(axes)
        check.fail(f"o{suffix} has shape {list(o.shape)}, needs {needs} with dim >= 1")
    _check_other(o, lse, suffix, o.shape, o)


def _check_other(o: Tensor, lse: Tensor, suffix: str, shape: tuple[int, ...], like: Tensor) -> None:
    """A state of ``shape``; what is only read keeps the rules of what may be written."""
    check.output(o, f"o{suffix}", shape, like.dtype, like, "the first state")
    check.output(lse, f"lse{suffix}", shape[:-1], torch.float32, like, "the first state")
