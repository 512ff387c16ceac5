"""Rotary position embedding of queries and keys.

All functions take q ``[tokens, qo_heads, dim]`` and k ``[tokens, kv_heads, dim]`` with any strides
but a contiguous last dimension, float16, bfloat16 or float32, and compute in float32. Elements past
the rotated ones are copied unchanged. The two forms: :func:`apply_rope` computes angles from a
:class:`attnhub.Rope`, :func:`apply_rope_cos_sin` looks cosines and sines up in a table; a trailing
underscore means in place.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
from torch import Tensor

from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.rope.problem import ApplyRopeCosSinProblem, ApplyRopeProblem, rope_facts
from attnhub.rope.tables import check_cos_sin, rotated
from attnhub.variant.rope import Rope

Pair = tuple[Tensor, Tensor]


@functools.cache
def _parsed(text: str) -> Rope:
    return Rope.from_data(json.loads(text))


def _key(
    q: Tensor, k: Tensor, positions: Tensor, q_out: Tensor, k_out: Tensor, rope: Rope
) -> tuple[Any, ...]:
    return (*_tensors_key(q, k, q_out, k_out), rope)


def _cos_sin_key(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cache: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    interleaved: bool,  # noqa: FBT001 - the order of the op's schema
) -> tuple[Any, ...]:
    return (*_tensors_key(q, k, q_out, k_out), cache.shape[1], interleaved)


def _tensors_key(q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor) -> tuple[Any, ...]:
    tokens, qo_heads, dim = q.shape
    contiguous = q.is_contiguous() and k.is_contiguous()
    if contiguous and (q_out is not q or k_out is not k):
        contiguous = q_out.is_contiguous() and k_out.is_contiguous()
    return q.device, q.dtype, bucket(tokens), qo_heads, k.shape[1], dim, contiguous


def _facts(key: tuple[Any, ...]) -> dict[str, Any]:
    device, dtype, tokens, qo_heads, kv_heads, dim, contiguous, *_ = key
    return {
        "device": devices.describe(device),
        "extent": Extent(tokens=tokens),
        "dtype": check.dtype_name(dtype),
        "num_qo_heads": qo_heads,
        "num_kv_heads": kv_heads,
        "head_dim": dim,
        "contiguous": contiguous,
    }


def _problem(*args: Any) -> ApplyRopeProblem:
    rope: Rope = args[-1]
    facts = _facts(_key(*args))
    return ApplyRopeProblem(**facts, **rope_facts(rope, facts["head_dim"]), rope=rope)


def _cos_sin_problem(*args: Any) -> ApplyRopeCosSinProblem:
    *key, rotary_dim, interleaved = _cos_sin_key(*args)
    return ApplyRopeCosSinProblem(
        **_facts(tuple(key)), rotary_dim=rotary_dim, interleaved=interleaved
    )


_apply_rope = FunctionalOp(
    "rope.apply_rope",
    "(Tensor q, Tensor k, Tensor positions, Tensor(a!) q_out, Tensor(b!) k_out, str rope) -> ()",
    key=_key,
    problem=_problem,
    flatten=lambda *args: (*args[:-1], args[-1].to_json()),
    unflatten=lambda *flat: (*flat[:-1], _parsed(flat[-1])),
    facts=1,
)
_apply_rope_cos_sin = FunctionalOp(
    "rope.apply_rope_cos_sin",
    "(Tensor q, Tensor k, Tensor positions, Tensor cache, Tensor(a!) q_out, Tensor(b!) k_out, "
    "bool interleaved) -> ()",
    key=_cos_sin_key,
    problem=_cos_sin_problem,
)


def apply_rope(
    q: Tensor, k: Tensor, positions: Tensor, rope: Rope, *, out: Pair | None = None
) -> Pair:
    """Queries and keys, each head turned by its token's position.

    Args:
        q: ``[tokens, qo_heads, dim]``.
        k: ``[tokens, kv_heads, dim]``, dtype of ``q``.
        positions: int32 ``[tokens]``.
        rope: base, rotated part, pairing and scaling (linear, Llama 3, YaRN).
        out: ``(q_out, k_out)`` to write to, shaped as ``q`` and ``k``. They may be ``q`` and ``k``
            themselves (see :func:`apply_rope_`) but must not overlap them otherwise.

    Returns:
        ``(q, k)`` turned, in the dtype of ``q`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a rotation that does not suit the
            head.

    Equivalent PyTorch, for whole heads and pairs ``(i, i + dim/2)``::

        angle = positions[:, None].float() * theta ** (-torch.arange(0, dim, 2) / dim)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = q.float().chunk(2, dim=-1)
        q_out = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(q.dtype)

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Example::

        q, k = attnhub.rope.apply_rope(q, k, positions, attnhub.Rope(theta=5e5))
    """
    _check(q, k, positions)
    rotated(rope, q.shape[2])
    q_out, k_out = _outputs(q, k, out)
    _apply_rope(q, k, positions, q_out, k_out, rope)
    return q_out, k_out


def apply_rope_(q: Tensor, k: Tensor, positions: Tensor, rope: Rope) -> None:
    """:func:`apply_rope` in place: ``q`` and ``k`` are overwritten."""
    _check(q, k, positions)
    rotated(rope, q.shape[2])
    _apply_rope(q, k, positions, q, k, rope)


def apply_rope_cos_sin(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cache: Tensor,
    *,
    interleaved: bool = False,
    out: Pair | None = None,
) -> Pair:
    """:func:`apply_rope` with cosines and sines looked up in a table.

    Args:
        q: ``[tokens, qo_heads, dim]``.
        k: ``[tokens, kv_heads, dim]``, dtype of ``q``.
        positions: int32 ``[tokens]``, each a row of ``cache`` (checked by value on the host only).
        cache: float32 ``[max_position, rotary_dim]``, cosines then sines, as :func:`cos_sin_cache`
            makes it. Its width is how many leading elements of a head turn.
        interleaved: pairs ``(2i, 2i + 1)`` instead of ``(i, i + rotary_dim/2)``.
        out: as in :func:`apply_rope`.

    Returns:
        ``(q, k)`` turned, in the dtype of ``q`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a position outside the table.

    Example::

        cache = attnhub.rope.cos_sin_cache(8192, 128, attnhub.Rope(theta=5e5), device=q.device)
        q, k = attnhub.rope.apply_rope_cos_sin(q, k, positions, cache)
    """
    _check(q, k, positions)
    _check_cache(cache, positions, q)
    q_out, k_out = _outputs(q, k, out)
    _apply_rope_cos_sin(q, k, positions, cache, q_out, k_out, interleaved)
    return q_out, k_out


def apply_rope_cos_sin_(
    q: Tensor, k: Tensor, positions: Tensor, cache: Tensor, *, interleaved: bool = False
) -> None:
    """:func:`apply_rope_cos_sin` in place: ``q`` and ``k`` are overwritten."""
    _check(q, k, positions)
    _check_cache(cache, positions, q)
    _apply_rope_cos_sin(q, k, positions, cache, q, k, interleaved)


def _check(q: Tensor, k: Tensor, positions: Tensor) -> None:
    check.is_tensor(q, "q")
    check.is_tensor(k, "k")
    if q.dtype not in check.FLOATS:
        check.dtype(q, "q", check.FLOATS)
    if q.dim() != 3 or not q.shape[2]:
        check.fail(f"q has shape {list(q.shape)}, needs [tokens, qo_heads, dim] with dim >= 1")
    if k.dtype != q.dtype:
        check.dtype(k, "k", (q.dtype,))
    tokens, _, dim = q.shape
    if k.dim() != 3 or k.shape[0] != tokens or k.shape[2] != dim:
        check.shape(k, "k", (tokens, "kv_heads", dim))
    metadata.index_tensor(positions, "positions", tokens)
    check.device(k, "k", q.device, "q")
    check.device(positions, "positions", q.device, "q")
    check.last_contiguous(q, "q")
    check.last_contiguous(k, "k")
    check.no_grad(q, k)


def _check_cache(cache: Tensor, positions: Tensor, q: Tensor) -> None:
    check_cos_sin(cache, "cache", q.shape[2], q.device)
    if positions.device.type == "cpu" and not torch.compiler.is_compiling():
        metadata.in_range(positions, "positions", 0, cache.shape[0], "the rows of cache")


def _outputs(q: Tensor, k: Tensor, out: Pair | None) -> Pair:
    if out is None:
        return torch.empty_like(q), torch.empty_like(k)
    check.pair(out, "out", "(q, k)")
    q_out, k_out = out
    check.output(q_out, "out[0]", q.shape, q.dtype, q, "q")
    check.output(k_out, "out[1]", k.shape, q.dtype, q, "q")
    return q_out, k_out
