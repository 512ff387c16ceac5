"""Draws of one token per request. What all of them keep is stated in :mod:`attnhub.sampling`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.sampling import parameters as given
from attnhub.sampling.parameters import Order, SamplingParams
from attnhub.sampling.problem import SampleLogitsProblem, SampleProblem

_FLOAT32 = (torch.float32,)
_FILTERS = (
    "Tensor? top_k, SymInt? top_k_value, Tensor? top_p, float? top_p_value, "
    "Tensor? min_p, float? min_p_value, bool joint, Tensor(a!) out"
)


def _key(x: Tensor, indices: Tensor | None, *args: Any) -> tuple[Any, ...]:
    _, _, *filters, joint, out = args
    used = [f is not None for f in filters]
    rows = bucket(out.shape[0])
    return (x.device, x.dtype, x.shape[1], rows, x.is_contiguous(), indices is None, joint, *used)


def _facts(
    x: Tensor, indices: Tensor | None, top_k: Any, top_p: Any, min_p: Any, joint: Any, out: Tensor
) -> dict[str, Any]:
    return {
        "device": devices.describe(x.device),
        "extent": Extent(tokens=out.shape[0]).bucketed(),
        "vocab": x.shape[1],
        "contiguous": x.is_contiguous(),
        "top_k": top_k is not None,
        "top_p": top_p is not None,
        "min_p": min_p is not None,
        "joint": joint,
        "indices": indices is not None,
    }


def _sample_problem(
    probs: Tensor, indices: Tensor | None, _seed: Tensor, _offset: Tensor, *filters: Any
) -> SampleProblem:
    return SampleProblem(**_facts(probs, indices, *filters))


def _logits_problem(
    logits: Tensor,
    indices: Tensor | None,
    _seed: Tensor,
    _offset: Tensor,
    temperature: Any,
    *filters: Any,
) -> SampleLogitsProblem:
    return SampleLogitsProblem(
        **_facts(logits, indices, *filters),
        dtype=check.dtype_name(logits.dtype),
        temperature=temperature is not None,
    )


_sample = FunctionalOp(
    "sampling.sample",
    f"(Tensor probs, Tensor? indices, Tensor seed, Tensor offset, {_FILTERS}) -> ()",
    key=_key,
    problem=_sample_problem,
    **given.per_request(4, 7),
)
_sample_logits = FunctionalOp(
    "sampling.sample_logits",
    "(Tensor logits, Tensor? indices, Tensor seed, Tensor offset, "
    f"Tensor? temperature, float? temperature_value, {_FILTERS}) -> ()",
    key=_key,
    problem=_logits_problem,
    **given.per_request(4, 8),
)


def sample(
    logits: Tensor,
    params: SamplingParams,
    *,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """One token per request from logits, with every setting of ``params``.

    The distribution is ``softmax(logits / temperature)``; the filters look at it in float32.

    Args:
        logits: ``[batch, vocab]``, float16, bfloat16 or float32; -inf forbids a token.
        params: see :class:`SamplingParams`.
        indices: int32 ``[batch]``: request b uses row ``indices[b]`` of ``logits``, which may then
            have any number of rows.
        generator: where fresh seeds come from; the default generator of the device if None.
        seed: int64 ``[batch]``, given with ``offset`` and instead of ``generator``.
        offset: int64 ``[batch]``, to be advanced by one each step.

    Returns:
        int32 ``[batch]``; -1 for a row that cannot be sampled (NaN, +inf, all -inf).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a number out of range.

    Example::

        params = SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
        tokens = attnhub.sampling.sample(logits, params, seed=seed, offset=offset)
    """
    given.check_rows(logits, "logits", check.FLOATS)
    if not isinstance(params, SamplingParams):
        check.fail(f"params is a {type(params).__name__}, needs SamplingParams(...)")
    batch = _batch(logits, "logits", indices)
    device = logits.device
    top_k = given.take_top_k(params.top_k, logits.shape[1], batch, device)
    top_p = given.TOP_P.take(params.top_p, batch, device)
    min_p = given.MIN_P.take(params.min_p, batch, device)
    temperature = given.TEMPERATURE.take(params.temperature, batch, device)
    joint = _joint(params.order, top_k, top_p)
    seed, offset = given.random_state(batch, device, generator, seed, offset)
    out = torch.empty(batch, dtype=torch.int32, device=device)
    _sample_logits(logits, indices, seed, offset, temperature, top_k, top_p, min_p, joint, out)
    return out


def sample_from_logits(
    logits: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample` without filters.

    Example::

        tokens = attnhub.sampling.sample_from_logits(logits, temperature=0.7)
    """
    params = SamplingParams(temperature=temperature)
    return sample(logits, params, indices=indices, generator=generator, seed=seed, offset=offset)


def top_k_top_p_sample_from_logits(
    logits: Tensor,
    top_k: Tensor | int,
    top_p: Tensor | float,
    *,
    temperature: Tensor | float = 1.0,
    order: Order = "top_k_first",
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample` with ``top_k`` and ``top_p``; ``order`` as in :class:`SamplingParams`.

    Example::

        tokens = attnhub.sampling.top_k_top_p_sample_from_logits(logits, 50, 0.9)
    """
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, order=order)
    return sample(logits, params, indices=indices, generator=generator, seed=seed, offset=offset)


def sample_from_probs(
    probs: Tensor,
    *,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """One token per request in proportion to its row.

    Args:
        probs: float32 ``[batch, vocab]``; rows need not sum to 1.
        indices: int32 ``[batch]``: request b uses row ``indices[b]`` of ``probs``, which may then
            have any number of rows.
        generator: where fresh seeds come from; the default generator of the device if None.
        seed: int64 ``[batch]``, given with ``offset`` and instead of ``generator``.
        offset: int64 ``[batch]``, to be advanced by one each step.

    Returns:
        int32 ``[batch]``; -1 for a row that cannot be sampled (NaN, inf, negative, all zero).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride.

    Example::

        tokens = attnhub.sampling.sample_from_probs(probs, seed=seed, offset=offset)
    """
    return _from_probs(probs, SamplingParams(), indices, generator, seed, offset)


def top_k_sample(
    probs: Tensor,
    top_k: Tensor | int,
    *,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample_from_probs` among the ``top_k`` most likely tokens and their equals.

    Source: Fan, Lewis and Dauphin, "Hierarchical neural story generation" (2018).

    Example::

        tokens = attnhub.sampling.top_k_sample(probs, 50)
    """
    return _from_probs(probs, SamplingParams(top_k=top_k), indices, generator, seed, offset)


def top_p_sample(
    probs: Tensor,
    top_p: Tensor | float,
    *,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample_from_probs` among the top tokens that hold ``top_p`` of the mass.

    Source: Holtzman et al., "The curious case of neural text degeneration" (2020).

    Example::

        tokens = attnhub.sampling.top_p_sample(probs, 0.9)
    """
    return _from_probs(probs, SamplingParams(top_p=top_p), indices, generator, seed, offset)


def min_p_sample(
    probs: Tensor,
    min_p: Tensor | float,
    *,
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample_from_probs` among tokens at least ``min_p`` times as likely as the likeliest.

    Source: Nguyen et al., "Turning up the heat: min-p sampling" (2025).

    Example::

        tokens = attnhub.sampling.min_p_sample(probs, 0.05)
    """
    return _from_probs(probs, SamplingParams(min_p=min_p), indices, generator, seed, offset)


def top_k_top_p_sample_from_probs(
    probs: Tensor,
    top_k: Tensor | int,
    top_p: Tensor | float,
    *,
    order: Order = "top_k_first",
    indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """:func:`sample_from_probs` with both filters; ``order`` as in :class:`SamplingParams`.

    Example::

        tokens = attnhub.sampling.top_k_top_p_sample_from_probs(probs, 50, 0.9, order="joint")
    """
    params = SamplingParams(top_k=top_k, top_p=top_p, order=order)
    return _from_probs(probs, params, indices, generator, seed, offset)


def _from_probs(
    probs: Tensor,
    params: SamplingParams,
    indices: Tensor | None,
    generator: torch.Generator | None,
    seed: Tensor | None,
    offset: Tensor | None,
) -> Tensor:
    given.check_rows(probs, "probs", _FLOAT32)
    batch = _batch(probs, "probs", indices)
    device = probs.device
    top_k = given.take_top_k(params.top_k, probs.shape[1], batch, device)
    top_p = given.TOP_P.take(params.top_p, batch, device)
    min_p = given.MIN_P.take(params.min_p, batch, device)
    joint = _joint(params.order, top_k, top_p)
    seed, offset = given.random_state(batch, device, generator, seed, offset)
    out = torch.empty(batch, dtype=torch.int32, device=device)
    _sample(probs, indices, seed, offset, top_k, top_p, min_p, joint, out)
    return out


def _batch(x: Tensor, name: str, indices: Tensor | None) -> int:
    """The number of requests."""
    if indices is None:
        return x.shape[0]
    given.check_indices(indices, x, name)
    return indices.shape[0]


def _joint(order: str, top_k: Any, top_p: Any) -> bool:
    """Whether the filters are joint; without both of them their order says nothing."""
    if order not in ("top_k_first", "joint"):
        check.fail(f"order is {order!r}, needs 'top_k_first' or 'joint'")
    return order == "joint" and top_k is not None and top_p is not None
