"""What the rotations are given: tables of cosines and sines, and positions of ragged batches."""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.core import check, metadata
from attnhub.rope import frequencies
from attnhub.variant.rope import Rope


def cos_sin_cache(
    max_position: int, head_dim: int, rope: Rope, *, device: torch.device | str = "cpu"
) -> Tensor:
    """The cosines and sines of positions ``0 .. max_position - 1``, as one table.

    Row ``p`` holds ``cos(p * f)`` of all pairs, then ``sin(p * f)``, with the frequencies ``f`` of
    ``rope`` and, for YaRN, times its attention factor.

    Args:
        max_position: number of rows.
        head_dim: size of a head; ``rope.rotary_dim``, if set, is how much of it turns.
        rope: base, rotated part and scaling.
        device: where the table lies.

    Returns:
        float32 ``[max_position, rotary_dim]``.

    Raises:
        InvalidArgument: ``max_position`` is negative, or ``rope`` does not suit ``head_dim``.

    Example::

        cache = attnhub.rope.cos_sin_cache(8192, 128, attnhub.Rope(theta=5e5), device="cuda:0")
    """
    if max_position < 0:
        check.fail(f"max_position={max_position}: give the number of rows, 0 or more")
    rotary_dim = rotated(rope, head_dim)
    return frequencies.cos_sin_cache(
        max_position, rotary_dim, rope.theta, rope.scaling, device=device
    )


def positions(indptr: Tensor, offsets: Tensor, *, tokens: int | None = None) -> Tensor:
    """Position of every token of a ragged batch: ``offsets[b] + i`` for token ``i`` of request b.

    Never synchronises with the device.

    Args:
        indptr: int32 ``[batch + 1]``, where each request's tokens start.
        offsets: int32 ``[batch]``, position of each request's first token, on the same device.
        tokens: size of the result. It is ``indptr[-1]`` by default, which only the host can see:
            needed with an ``indptr`` on another device and under torch.compile. Tokens past
            ``indptr[-1]`` are padding and get position 0.

    Returns:
        int32 ``[tokens]``.

    Raises:
        InvalidArgument: wrong shape, dtype or device; on the host also an ``indptr`` that does not
            ascend from 0 or holds more than ``tokens``.

    Example:
        >>> indptr = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
        >>> positions(indptr, torch.tensor([10, 20, 30], dtype=torch.int32))
        tensor([10, 11, 30, 31, 32], dtype=torch.int32)
    """
    metadata.index_tensor(indptr, "indptr", None)
    if indptr.numel() == 0:
        check.fail("indptr is empty, needs [batch + 1] with a leading 0")
    metadata.index_tensor(offsets, "offsets", indptr.numel() - 1)
    check.device(offsets, "offsets", indptr.device, "indptr")
    size = _num_tokens(indptr, tokens)
    if not size or not offsets.numel():
        return torch.zeros(size, dtype=torch.int32, device=indptr.device)
    token = torch.arange(size, dtype=torch.int32, device=indptr.device)
    # The last request that starts at or before the token; empty ones start where the next does.
    request = torch.searchsorted(indptr[1:], token, right=True).clamp(max=offsets.numel() - 1)
    return torch.where(token < indptr[-1], token + (offsets - indptr[:-1])[request], 0)


def _num_tokens(indptr: Tensor, tokens: int | None) -> int:
    if tokens is not None and tokens < 0:
        check.fail(f"tokens={tokens}: give the number of tokens, 0 or more")
    if torch.compiler.is_compiling() or indptr.device.type != "cpu":
        if tokens is None:
            check.fail(
                "tokens= is needed: how many there are stands in indptr[-1], which cannot be read "
                "under torch.compile, nor from another device without a synchronisation"
            )
        return tokens
    held = metadata.indptr_values(indptr, "indptr")[-1]
    if tokens is not None and tokens < held:
        check.fail(f"tokens={tokens}, but indptr[-1] is {held}; give at least that")
    return held if tokens is None else tokens


def rotated(rope: Rope, head_dim: int) -> int:
    """How many elements of a head of ``head_dim`` turn; InvalidArgument if they cannot."""
    if not isinstance(rope, Rope):
        check.fail(f"rope is of type {type(rope).__name__}; give an attnhub.Rope")
    rotary_dim = head_dim if rope.rotary_dim is None else rope.rotary_dim
    if rotary_dim > head_dim:
        check.fail(f"rope turns {rotary_dim} elements, but a head has {head_dim}; lower rotary_dim")
    if rotary_dim < 2 or rotary_dim % 2:
        check.fail(
            f"a head of {head_dim} elements cannot turn as a whole, elements turn in pairs; give "
            "Rope(rotary_dim=...) an even number of them"
        )
    return rotary_dim


def check_cos_sin(cache: Tensor, name: str, head_dim: int, device: torch.device) -> None:
    """Check a table that heads of ``head_dim`` on ``device`` are turned by."""
    check.is_tensor(cache, name)
    if cache.dtype != torch.float32:
        check.dtype(cache, name, (torch.float32,))
    if cache.dim() != 2 or cache.shape[1] % 2 or not 2 <= cache.shape[1] <= head_dim:
        check.fail(
            f"{name} has shape {list(cache.shape)}, needs [max_position, rotary_dim] with an even "
            f"rotary_dim from 2 to the head's {head_dim}; make it with attnhub.rope.cos_sin_cache"
        )
    check.device(cache, name, device, "q")
    check.last_contiguous(cache, name)
    check.no_grad(cache)
