"""What merging partial attention results means: plain PyTorch.

Attention over a set of keys can be computed over disjoint parts of it. Each part gives an output
``o`` and ``lse``, the natural log of its softmax denominator; weights ``exp(lse)`` put the parts
together. A part that saw no key has ``lse`` -inf: it counts for nothing, whatever its ``o`` holds.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Ye et al.,
"FlashInfer" (2025).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["merge_state", "merge_states"]


def merge_state(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys.

    Args:
        o_a: ``[tokens, heads, dim]``, output over the first set.
        lse_a: float32 ``[tokens, heads]``, natural log.
        o_b: ``[tokens, heads, dim]``, output over the second set.
        lse_b: float32 ``[tokens, heads]``.

    Returns:
        ``o [tokens, heads, dim]`` of ``o_a.dtype`` and ``lse [tokens, heads]`` of ``lse_a.dtype``;
        where both sets were empty, 0 and -inf.

    Example:
        >>> o, lse = torch.tensor([[[4.0]]]), torch.tensor([[0.0]])
        >>> merge_state(o, lse, -o, lse)
        (tensor([[[0.]]]), tensor([[0.6931]]))
    """
    return merge_states(torch.stack([o_a, o_b], dim=1), torch.stack([lse_a, lse_b], dim=1))


def merge_states(o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of ``n`` disjoint sets of keys.

    Args:
        o: ``[tokens, n, heads, dim]``, output over each set.
        lse: float32 ``[tokens, n, heads]``, natural log.

    Returns:
        ``o [tokens, heads, dim]`` of the input's dtype and ``lse [tokens, heads]``; 0 and -inf
        where all sets were empty, and everywhere if n is 0.

    Example:
        >>> merge_states(torch.empty(1, 0, 1, 2), torch.empty(1, 0, 1))
        (tensor([[[0., 0.]]]), tensor([[-inf]]))
    """
    tokens, num_states, heads, dim = o.shape
    if num_states == 0:
        return o.new_zeros(tokens, heads, dim), lse.new_full((tokens, heads), -torch.inf)
    wide = torch.promote_types(o.dtype, torch.float32)
    empty = lse == -torch.inf
    largest = lse.amax(dim=1, keepdim=True)
    # All sets empty: subtracting -inf would give NaN, any finite number gives weights of 0.
    base = largest.masked_fill(largest == -torch.inf, 0.0).to(wide)
    # NOTE: exp(lse - merged lse) would already sum to 1, but a merged lse of -60000 is only known
    # to 1/256 in float32; relative to the largest the weights are exact at any magnitude.
    weights = torch.exp(lse.to(wide) - base)
    total = weights.sum(dim=1)
    # A select, not a product with a weight of 0: 0 * NaN is NaN.
    values = o.to(wide).masked_fill(empty[..., None], 0.0)
    weighted = (weights[..., None] * values).sum(dim=1)
    merged = weighted / total.masked_fill(total == 0, 1.0)[..., None]
    return merged.to(o.dtype), (base.squeeze(1) + total.log()).to(lse.dtype)
