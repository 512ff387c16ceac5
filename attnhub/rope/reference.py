"""What rotary position embedding means: plain PyTorch.

The angle ``position * frequency`` is a float32 product by definition (that is how models are
trained and served); its cosine, sine and the rotation are computed in float32, or in float64 for
float64 input.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.rope.frequencies import inverse_frequencies
from attnhub.variant.rope import Rope

__all__ = ["apply_rope", "apply_rope_cos_sin_cache", "positions_from_offsets"]


def apply_rope(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """``x`` with the leading ``rotary_dim`` elements of each head turned by its position.

    Args:
        x: ``[tokens, heads, dim]``, any strides.
        positions: int ``[tokens]``; may be negative.
        rope: base, rotated part, pairing and scaling. ``rotary_dim=None`` turns the whole head.
            Pairs are ``(i, i + rotary_dim/2)``, or ``(2i, 2i + 1)`` if ``interleaved``.

    Returns:
        ``[tokens, heads, dim]`` of ``x.dtype``; elements past rotary_dim are copied unchanged, also
        under YaRN's attention factor.

    Raises:
        InvalidArgument: rotary_dim exceeds dim, is odd or not positive.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0, 7.0]]])
        >>> apply_rope(x, torch.tensor([1]), Rope(theta=10000.0, rotary_dim=2))
        tensor([[[0.5403, 0.8415, 7.0000]]])
    """
    rotary_dim = x.shape[-1] if rope.rotary_dim is None else rope.rotary_dim
    frequencies, factor = inverse_frequencies(rotary_dim, rope.theta, rope.scaling, device=x.device)
    wide = torch.promote_types(x.dtype, torch.float32)
    angles = (positions.to(torch.float32)[:, None] * frequencies).to(wide)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return _rotate(x, cos, sin, interleaved=rope.interleaved)


def apply_rope_cos_sin_cache(
    x: Tensor, positions: Tensor, cache: Tensor, *, interleaved: bool = False
) -> Tensor:
    """`apply_rope` with cosines and sines looked up in a table.

    Args:
        x: ``[tokens, heads, dim]``, any strides.
        positions: int ``[tokens]``, each a row of ``cache``.
        cache: float32 ``[max_position, rotary_dim]``, cosines then sines, as
            `attnhub.rope.frequencies.cos_sin_cache` makes it.
        interleaved: pairs ``(2i, 2i + 1)`` instead of ``(i, i + rotary_dim/2)``.

    Returns:
        ``[tokens, heads, dim]`` of ``x.dtype``.

    Raises:
        InvalidArgument: the table is wider than a head, or its width is odd.

    Example:
        >>> cache = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # row 1: a quarter turn
        >>> apply_rope_cos_sin_cache(torch.tensor([[[2.0, 5.0]]]), torch.tensor([1]), cache)
        tensor([[[-5.,  2.]]])
    """
    if cache.shape[-1] % 2:
        raise InvalidArgument(
            f"cache has {cache.shape[-1]} columns; it must hold as many cosines as sines"
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cache[positions.long()].to(wide).chunk(2, dim=-1)
    return _rotate(x, cos, sin, interleaved=interleaved)


def positions_from_offsets(indptr: Tensor, offsets: Tensor) -> Tensor:
    """Position of every token of a ragged batch: ``offsets[b] + i`` for token ``i`` of request b.

    Args:
        indptr: int ``[batch + 1]``, where each request's tokens start.
        offsets: int ``[batch]``, position of each request's first token.

    Returns:
        int32 ``[tokens]`` with ``tokens = indptr[-1]``.

    Example:
        >>> positions_from_offsets(torch.tensor([0, 2, 2, 5]), torch.tensor([10, 20, 30]))
        tensor([10, 11, 30, 31, 32], dtype=torch.int32)
    """
    lengths = indptr.diff()
    first = torch.repeat_interleave(offsets - indptr[:-1], lengths)
    return (first + torch.arange(first.numel(), device=first.device)).to(torch.int32)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn pairs of ``x`` by angles given as cos and sin, each ``[tokens, rotary_dim / 2]``."""
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise InvalidArgument(
            f"rotary_dim={2 * half} exceeds the head dim {x.shape[-1]}; it can be at most that"
        )
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = x[..., first].to(cos.dtype), x[..., second].to(cos.dtype)
    cos, sin = cos[:, None], sin[:, None]  # one angle for all heads of a token
    y = x.clone()
    y[..., first] = (a * cos - b * sin).to(x.dtype)
    y[..., second] = (b * cos + a * sin).to(x.dtype)
    return y
