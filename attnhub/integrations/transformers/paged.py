"""The attention of "paged|attnhub": continuous batching, ``model.generate_batch()``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import BatchAttention, DTypes, Paged, PagedKV, Ragged, RaggedKV
from attnhub.core import check
from attnhub.integrations.transformers.arguments import Scores, causality, refuse
from attnhub.variant import Variant


@torch.compiler.disable  # type: ignore[untyped-decorator]
def paged_attention(
    module: Any,
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
    """Attention of one layer in one step of continuous batching.

    Layers of full attention append to their pages and read them in place. Layers with a window keep
    a ring of slots that is no page table, and a step of whole prompts has nothing to read: there
    ``cache.update`` gives all keys end to end.

    Args:
        module: the attention module, which must be causal.
        query: ``[1, heads, tokens, dim]``, the requests of the step end to end.
        key: ``[1, kv_heads, tokens, dim]``, the new tokens only.
        value: like ``key``.
        attention_mask: None; the lengths say it all.
        scaling: factor of q.k.
        sliding_window: how many tokens a query sees, itself included.
        softcap: cap of the scores.
        s_aux: a sink logit for each query head, ``[heads]``.
        is_causal: in place of the module's own.
        **kwargs: of a step: the ``PagedAttentionCache`` as ``cache``; ``cu_seq_lens_q`` and
            ``cu_seq_lens_k``, int32 ``[requests + 1]``; their ``max_seqlen_q`` and
            ``max_seqlen_k``; ``read_index`` and ``write_index``, slots of the cache for each group
            of layers. What concerns keys is a dict by type of layer where there are several.

    Returns:
        ``[1, tokens, heads, dim]``, and None for the weights, which are never formed.

    Raises:
        InvalidArgument: no paged cache, attention that is not causal, a CUDA graph under capture,
            or a keyword that is not served.
    """
    step = _Step.take(kwargs)
    refuse({**kwargs, "attention_mask": attention_mask})
    if not causality(module, is_causal):
        check.fail("is_causal is False: continuous batching serves causal attention only")
    scores = Scores(scaling=scaling, softcap=softcap, s_aux=s_aux)
    layer = _Layer(step, module.layer_idx, sliding_window)
    k, v = layer.store(key, value)
    q = query[0].transpose(0, 1)
    attn = layer.planned(q, k, v, scores.variant(causal=True, window=layer.window))
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    attn.run(q, (k, v), params=scores.params, out=out)
    return out[None], None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The keywords of a step under their own names; see ``paged_attention``."""

    cache: Any
    cu_seq_lens_q: Tensor
    cu_seq_lens_k: Tensor | Mapping[str, Tensor]
    max_seqlen_q: int
    max_seqlen_k: int | Mapping[str, int]
    read_index: list[Tensor]
    write_index: list[Tensor]

    @classmethod
    def take(cls, keywords: dict[str, Any]) -> _Step:
        """Take the step out of an attention's keywords."""
        missing = [f.name for f in fields(cls) if keywords.get(f.name) is None]
        if missing:
            check.fail(
                f"{', '.join(missing)} not given: 'paged|attnhub' serves model.generate_batch(); "
                "use attn_implementation='attnhub' for forward() and generate()"
            )
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            check.fail(
                "'paged|attnhub' plans each step, so a CUDA graph cannot hold it; leave "
                "use_cuda_graph of ContinuousBatchingConfig unset"
            )
        return cls(**{f.name: keywords.pop(f.name) for f in fields(cls)})

    def keys(self, kind: str) -> tuple[Tensor, int]:
        """Where each request's keys start, and how many it has at most, in layers of a kind."""
        starts, longest = self.cu_seq_lens_k, self.max_seqlen_k
        return (
            starts if isinstance(starts, Tensor) else starts[kind],
            longest if isinstance(longest, int) else longest[kind],
        )


@dataclass(slots=True)
class _Planned:
    """An attention, and the lengths of the step that it is planned for."""

    attn: BatchAttention
    lengths: Tensor | None = None


#: The attentions of every cache, by what sets them apart. They live as long as the cache.
_attentions: weakref.WeakKeyDictionary[Any, dict[Any, _Planned]] = weakref.WeakKeyDictionary()


class _Layer:
    """One layer's part of a step."""

    def __init__(self, step: _Step, number: int, window: int | None) -> None:
        cache = step.cache
        self._step = step
        self._number = number
        # Layers of one type share page tables in groups; the cache of each has an index there.
        self._group, self._index = cache.layer_index_to_group_indices[number]
        ring = cache.sliding_windows[number]
        self._full = ring == 1  # how the cache says that a layer has no window
        self.window = window if self._full else ring
        self._in_place = self._full and step.read_index[self._group].numel() > 0

    def store(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys to the cache; return K and V as pages, or all of them end to end."""
        step, cache = self._step, self._step.cache
        if not self._in_place:
            return cache.update(key, value, self._number, step.read_index, step.write_index)
        slots = step.write_index[self._group]
        pools = cache.key_cache[self._index], cache.value_cache[self._index]
        for pool, new in zip(pools, (key, value), strict=True):
            pool.index_copy_(0, slots, new[0].transpose(0, 1))
        k, v = (pool.unflatten(0, (-1, cache.block_size)) for pool in pools)
        return k, v

    def planned(self, q: Tensor, k: Tensor, v: Tensor, variant: Variant) -> BatchAttention:
        """The attention for such layers, planned for this step by the first of their group."""
        step = self._step
        dtypes = DTypes(q=q.dtype, kv=k.dtype, out=q.dtype)
        layout = Paged(step.cache.block_size) if self._in_place else Ragged()
        facts = (q.shape[1], k.shape[-2], (q.shape[2], v.shape[-1]), dtypes, layout)
        known = _attentions.setdefault(step.cache, {})
        planned = known.get((self._group, facts, variant))
        if planned is None:
            attn = BatchAttention(*facts, variant=variant, device=q.device)
            planned = known[self._group, facts, variant] = _Planned(attn)
        if self._index == 0 or planned.lengths is not step.cu_seq_lens_q:
            self._plan(planned.attn)
            planned.lengths = step.cu_seq_lens_q
        return planned.attn

    def _plan(self, attn: BatchAttention) -> None:
        step = self._step
        starts, longest = step.keys("full_attention" if self._full else "sliding_attention")
        metadata: PagedKV | RaggedKV = RaggedKV(starts)
        if self._in_place:
            slots = step.read_index[self._group]
            metadata = page_table(slots, starts, step.cache.block_size)
        attn.plan(step.cu_seq_lens_q, metadata, max_qo_len=step.max_seqlen_q, max_kv_len=longest)


def page_table(slots: Tensor, starts: Tensor, page_size: int) -> PagedKV:
    """The page table behind a list of slots, without synchronising.

    Args:
        slots: ``[keys or more]``, where each request's keys lie, requests end to end; a page is
            page_size slots in a row, and only a request's last may be in part its own.
        starts: int32 ``[requests + 1]``, where each request's slots begin.
        page_size: slots in a page.

    Returns:
        The table on the device of the slots; its list of pages is as long as it can need to be.
    """
    lengths = starts.diff()
    pages = (lengths + page_size - 1) // page_size
    indptr = torch.nn.functional.pad(pages.cumsum(0, dtype=torch.int32), (1, 0))
    most = slots.numel() // page_size + pages.numel()
    entry = torch.arange(most, dtype=torch.int32, device=slots.device)
    request = torch.searchsorted(indptr[1:], entry, right=True).clamp(max=pages.numel() - 1)
    first_slot = starts[request] + (entry - indptr[request]) * page_size
    indices = slots[first_slot.clamp(max=slots.numel() - 1)] // page_size
    last = lengths - (pages - 1).clamp(min=0) * page_size
    return PagedKV(indptr, indices.to(torch.int32), last)
