"""The rotary embedding of a model of transformers, its angles from one table a forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.integrations.transformers.trying import agrees, is_capturing, values
from attnhub.rope import apply_rope_cos_sin


def rotates_halves(theirs: Callable[..., Any], device: torch.device) -> bool:
    """Whether a family's function turns pairs ``(i, i + dim/2)`` of whole heads.

    Tried where the model is: a backend that the user requires may serve no other device.
    """
    like = torch.empty(0, device=device, dtype=torch.float32)
    q, k = values(2, 1, 2, 3, 8, like=like, low=-2.0, high=3.0).unbind()
    angles = values(1, 3, 4, like=like, low=-3.0, high=4.0).repeat(1, 1, 2)
    try:
        found = theirs(q, k, angles.cos(), angles.sin())
    except (TypeError, ValueError, RuntimeError):  # it takes other arguments
        return False
    expected = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    pairs = zip(found, expected, strict=False)
    return len(found) == 2 and all(agrees(a, b) for a, b in pairs)


@dataclass(slots=True)
class _Table:
    """Cosines and sines of one forward as AttnHub takes them: the same for every layer."""

    cache: Tensor
    positions: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor, batch: int) -> _Table:
        half = cos.shape[-1] // 2
        cache = torch.cat([cos[..., :half], sin[..., :half]], dim=-1).float().flatten(0, -2)
        rows = torch.arange(cache.shape[0], dtype=torch.int32, device=cos.device)
        # One table for all requests of a batch where all stand at the same positions.
        return cls(cache, rows if cos.shape[0] == batch else rows.repeat(batch))


@dataclass(slots=True)
class _Memo:
    """The table of the last cosines and sines; it goes when they go."""

    cos: weakref.ref[Tensor]
    sin: weakref.ref[Tensor]
    key: tuple[Any, ...]
    table: _Table


_last: _Memo | None = None


def _forget(dead: weakref.ref[Tensor]) -> None:
    global _last  # noqa: PLW0603 - as in _table
    last = _last
    if last is not None and (dead is last.cos or dead is last.sin):
        _last = None


def _may_be_kept(cos: Tensor, sin: Tensor) -> bool:
    """Whether a table holds at another call, because a change of its sources would be seen.

    Not in a graph: it would read a table from before it, or leave one that holds nothing until a
    replay. Not of inference tensors either, which do not count their changes.
    """
    if torch.compiler.is_compiling() or is_capturing():
        return False
    return not (cos.is_inference() or sin.is_inference())


def _table(cos: Tensor, sin: Tensor, batch: int) -> _Table:
    global _last  # noqa: PLW0603 - read and written whole, so threads only cost each other time
    if not _may_be_kept(cos, sin):
        return _Table.of(cos, sin, batch)
    # Another stream may run ahead of the one that makes the table.
    stream = torch.cuda.current_stream(cos.device) if cos.is_cuda else None
    key = (cos._version, sin._version, batch, stream)  # noqa: SLF001 - how torch sees changes
    last = _last
    if last is None or last.cos() is not cos or last.sin() is not sin or last.key != key:
        table = _Table.of(cos, sin, batch)
        last = _last = _Memo(weakref.ref(cos, _forget), weakref.ref(sin, _forget), key, table)
    return last.table


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[batch, heads, len, dim]`` turned by angles ``[batch or 1, len, dim]``."""
    heads_first = unsqueeze_dim == 1
    if heads_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    batch, length = q.shape[:2]
    table = _table(cos, sin, batch)
    turned = apply_rope_cos_sin(q.flatten(0, 1), k.flatten(0, 1), table.positions, table.cache)
    # Not unflatten: it is a method that Dynamo cannot trace where there is a default device.
    q, k = (x.view(batch, length, *x.shape[1:]) for x in turned)
    return (q.transpose(1, 2), k.transpose(1, 2)) if heads_first else (q, k)
