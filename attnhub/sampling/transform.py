"""Softmax, filters that return rows, and top-k. Rules in :mod:`attnhub.sampling`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.sampling import parameters as given
from attnhub.sampling.problem import (
    SoftmaxProblem,
    TopKMaskLogitsProblem,
    TopKProblem,
    TopKRenormProblem,
    TopPRenormProblem,
)

_FLOAT32 = (torch.float32,)


def _key(x: Tensor, parameter: Any, out: Tensor) -> tuple[Any, ...]:
    """Facts of the rows: ``x`` is read, ``out`` is written."""
    contiguous = x.is_contiguous() and out.is_contiguous()
    return x.device, x.dtype, x.shape[1], bucket(x.shape[0]), contiguous, parameter is None


def _facts(x: Tensor, out: Tensor) -> dict[str, Any]:
    return {
        "device": devices.describe(x.device),
        "extent": Extent(tokens=x.shape[0]).bucketed(),
        "vocab": x.shape[1],
        "contiguous": x.is_contiguous() and out.is_contiguous(),
    }


_softmax = FunctionalOp(
    "sampling.softmax",
    "(Tensor logits, Tensor? temperature, float? temperature_value, Tensor(a!) out) -> ()",
    key=_key,
    problem=lambda logits, temperature, out: SoftmaxProblem(
        **_facts(logits, out),
        dtype=check.dtype_name(logits.dtype),
        temperature=temperature is not None,
    ),
    **given.per_request(1, 2),
)
_top_k_renorm = FunctionalOp(
    "sampling.top_k_renorm",
    "(Tensor probs, Tensor? top_k, SymInt? top_k_value, Tensor(a!) out) -> ()",
    key=_key,
    problem=lambda probs, _, out: TopKRenormProblem(**_facts(probs, out)),
    **given.per_request(1, 2),
)
_top_p_renorm = FunctionalOp(
    "sampling.top_p_renorm",
    "(Tensor probs, Tensor? top_p, float? top_p_value, Tensor(a!) out) -> ()",
    key=_key,
    problem=lambda probs, _, out: TopPRenormProblem(**_facts(probs, out)),
    **given.per_request(1, 2),
)
_top_k_mask_logits = FunctionalOp(
    "sampling.top_k_mask_logits",
    "(Tensor logits, Tensor? top_k, SymInt? top_k_value, Tensor(a!) out) -> ()",
    key=_key,
    problem=lambda logits, _, out: TopKMaskLogitsProblem(
        **_facts(logits, out), dtype=check.dtype_name(logits.dtype)
    ),
    **given.per_request(1, 2),
)
_top_k = FunctionalOp(
    "sampling.top_k",
    "(Tensor scores, Tensor(a!) values, Tensor(b!) indices) -> ()",
    key=lambda scores, values, _: (*_key(scores, None, values), values.shape[1]),
    problem=lambda scores, values, _: TopKProblem(
        **_facts(scores, values), dtype=check.dtype_name(scores.dtype), k=values.shape[1]
    ),
)


def softmax(
    logits: Tensor, *, temperature: Tensor | float = 1.0, out: Tensor | None = None
) -> Tensor:
    """``softmax(logits / temperature)`` in float32.

    Args:
        logits: ``[batch, vocab]``, float16, bfloat16 or float32; -inf is probability 0.
        temperature: >= 0, a number or float32 ``[batch]``; 0 puts all mass on the largest logit,
            of equals on the lowest index.
        out: float32 ``[batch, vocab]`` to write to; may be ``logits`` itself.

    Returns:
        float32 ``[batch, vocab]`` (``out`` if given). A row is all NaN when it holds NaN or +inf or
        is all -inf.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a temperature out of range.

    Example::

        probs = attnhub.sampling.softmax(logits, temperature=0.7)
    """
    given.check_rows(logits, "logits", check.FLOATS)
    heat = given.TEMPERATURE.take(temperature, logits.shape[0], logits.device)
    out = _output(out, logits, torch.float32)
    _softmax(logits, heat, out)
    return out


def top_k_renorm(probs: Tensor, top_k: Tensor | int, *, out: Tensor | None = None) -> Tensor:
    """The ``top_k`` largest probabilities of each row, and their equals, divided by their sum.

    Args:
        probs: float32 ``[batch, vocab]``; rows need not sum to 1.
        top_k: >= 1, a number or int32 ``[batch]``; vocab or more keeps all.
        out: float32 ``[batch, vocab]`` to write to; may be ``probs`` itself.

    Returns:
        float32 ``[batch, vocab]`` (``out`` if given); NaN for a row that cannot be sampled.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a number out of range.

    Example::

        probs = attnhub.sampling.top_k_renorm(probs, 50)
    """
    given.check_rows(probs, "probs", _FLOAT32)
    top_k = _required(given.TOP_K, top_k, probs)
    out = _output(out, probs, torch.float32)
    _top_k_renorm(probs, top_k, out)
    return out


def top_p_renorm(probs: Tensor, top_p: Tensor | float, *, out: Tensor | None = None) -> Tensor:
    """The top probabilities that hold ``top_p`` of each row's mass, divided by their sum.

    Args:
        probs: float32 ``[batch, vocab]``; rows need not sum to 1.
        top_p: in (0, 1], a number or float32 ``[batch]``.
        out: float32 ``[batch, vocab]`` to write to; may be ``probs`` itself.

    Returns:
        float32 ``[batch, vocab]`` (``out`` if given); NaN for a row that cannot be sampled.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a number out of range.

    Example::

        probs = attnhub.sampling.top_p_renorm(probs, 0.9)
    """
    given.check_rows(probs, "probs", _FLOAT32)
    top_p = _required(given.TOP_P, top_p, probs)
    out = _output(out, probs, torch.float32)
    _top_p_renorm(probs, top_p, out)
    return out


def top_k_mask_logits(logits: Tensor, top_k: Tensor | int, *, out: Tensor | None = None) -> Tensor:
    """Logits with all but the ``top_k`` largest of each row, and their equals, set to -inf.

    Args:
        logits: ``[batch, vocab]``, float16, bfloat16 or float32, -inf allowed.
        top_k: >= 1, a number or int32 ``[batch]``; vocab or more keeps all.
        out: ``[batch, vocab]`` of the same dtype to write to; may be ``logits`` itself.

    Returns:
        ``[batch, vocab]`` in the dtype of ``logits`` (``out`` if given). A row that holds NaN is
        all NaN.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a number out of range.

    Example::

        logits = attnhub.sampling.top_k_mask_logits(logits, 50)
    """
    given.check_rows(logits, "logits", check.FLOATS)
    top_k = _required(given.TOP_K, top_k, logits)
    out = _output(out, logits, logits.dtype)
    _top_k_mask_logits(logits, top_k, out)
    return out


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row, in descending order, and where they are.

    Args:
        scores: ``[batch, vocab]``, float16, bfloat16 or float32. NaN counts as the largest.
        k: 1 to vocab. Exactly k are returned; of equals the lowest index comes first.

    Returns:
        values ``[batch, k]`` in the dtype of ``scores`` and indices int32 ``[batch, k]``.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or ``k`` out of range.

    Example::

        values, indices = attnhub.sampling.top_k(scores, 8)
    """
    given.check_rows(scores, "scores", check.FLOATS)
    batch, vocab = scores.shape
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= vocab:
        check.fail(f"k is {k!r}, needs an int from 1 to {vocab}, the length of a row of scores")
    values = torch.empty(batch, k, dtype=scores.dtype, device=scores.device)
    indices = torch.empty(batch, k, dtype=torch.int32, device=scores.device)
    _top_k(scores, values, indices)
    return values, indices


def _required(parameter: given.Parameter, value: Any, x: Tensor) -> Any:
    """A filter's only parameter: a neutral number is passed on, for there is no default."""
    if value is None:
        check.fail(f"{parameter.name} is None, needs a number {parameter.range} or a tensor")
    taken = parameter.take(value, x.shape[0], x.device)
    if taken is None:
        return parameter.unused
    return min(taken, x.shape[1]) if isinstance(taken, int) else taken


def _output(out: Tensor | None, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``out`` after its checks, or a new tensor of the shape of ``x``."""
    if out is None:
        return torch.empty(x.shape, dtype=dtype, device=x.device)
    check.output(out, "out", x.shape, dtype, x, "the input")
    return out
