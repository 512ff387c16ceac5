"""The attention of "attnhub": ``forward`` and ``generate`` with the caches of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.attn import attention
from attnhub.integrations.transformers.arguments import Scores, causality, refuse
from attnhub.integrations.transformers.mask import exact_keys, shared_keys


def dense_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over all its keys, those of the cache included.

    Args:
        module: the attention module.
        query: ``[batch, heads, len, dim]``, any strides with a contiguous last dim.
        key: ``[batch, kv_heads, kv_len, dim]``, heads not repeated.
        value: like ``key``; its dim may differ.
        attention_mask: in one of the forms of the mask function, or the caller's bool 4-D mask.
        scaling: factor of q.k.
        sliding_window: how many tokens a query sees, itself included.
        softcap: cap of the scores.
        s_aux: a sink logit for each query head, ``[heads]``.
        is_causal: in place of the module's own; queries are the last of the keys.
        **kwargs: what else the model hands down; see ``arguments.refuse``.

    Returns:
        ``[batch, len, heads, dim_v]``, and None for the weights, which are never formed.

    Raises:
        InvalidArgument: a keyword is set that would change the result and is not served.
    """
    refuse(kwargs)
    scores = Scores(scaling=scaling, softcap=softcap, s_aux=s_aux)
    mask: Tensor | None
    if attention_mask is not None and attention_mask.dim() == 4:
        mask, variant = exact_keys(attention_mask), scores.variant(causal=False, window=None)
    else:
        mask, window = shared_keys(attention_mask, sliding_window, query, key)
        variant = scores.variant(causal=causality(module, is_causal), window=window)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = q.new_empty(*q.shape[:3], v.shape[3])
    attention(q, k, v, variant=variant, mask=mask, params=scores.params, out=out)
    return out, None
