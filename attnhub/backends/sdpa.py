"""``torch_sdpa``: what ``scaled_dot_product_attention`` can do, on CPU and GPU.

Three routes, chosen when a batch is planned: dense tensors go to SDPA as they are; a batch of
decode rows is gathered into one padded call, its GQA group packed into the query rows; anything
else is one call a request, so that no prompt is padded to another's length.

SDPA returns no LSE; where it is asked for, the scores are formed a second time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnhub.attn import rows
from attnhub.attn.batch import AttentionBatch
from attnhub.attn.kv import PagedKV, Scales
from attnhub.attn.problem import AttentionProblem
from attnhub.variant import Variant


class _Plan:
    """Routes a batch; see the module docstring."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        self._variant = problem.variant
        self._batch: AttentionBatch | None = None
        self._decode: _Decode | None = None

    def update(self, batch: AttentionBatch) -> None:
        self._batch = batch
        decode = batch.qo_lens is not None and set(batch.qo_lens) == {1} and batch.mask is None
        self._decode = _Decode(batch, self._problem) if decode else None

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        scales: Scales,
        params: Mapping[str, Tensor | float],
    ) -> None:
        scale = self._variant.scale or 1.0 / math.sqrt(self._problem.head_dim_qk)
        q, scale = fold_scales(q, scales, scale)
        if self._batch is None:
            self._dense(q, k, v, out, lse, mask, scale)
        elif self._decode is not None:
            self._decode.run(q, k, v, out, lse, scale)
        else:
            self._each(q, k, v, out, lse, scale)
        scale_output(out, scales.v, self._problem.group_size)

    def _dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        scale: float,
    ) -> None:
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        seen = _seen(self._variant, q.shape[1], k.shape[1], mask, q.device)
        o, s = _attend(q, k, v, seen, scale, with_lse=lse is not None)
        out.copy_(o)
        if lse is not None and s is not None:
            lse.copy_(s)

    def _each(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, scale: float
    ) -> None:
        assert self._batch is not None
        for r in rows.requests(self._batch, self._problem, k, v):
            x = q[r.rows]
            seen = _seen(self._variant, x.shape[0], r.k.shape[0], r.visible, q.device)
            o, s = _attend(x[None], r.k[None], r.v[None], seen, scale, with_lse=lse is not None)
            out[r.rows] = o[0].to(out.dtype)
            if lse is not None and s is not None:
                lse[r.rows] = s[0]


class _Decode:
    """One query row a request: a padded gather, then one SDPA call."""

    def __init__(self, batch: AttentionBatch, problem: AttentionProblem) -> None:
        assert batch.kv_lens is not None
        self._problem = problem
        lens = torch.tensor(batch.kv_lens)
        longest = int(lens.max()) if len(lens) else 0
        slot = torch.arange(longest)
        self._valid = slot < lens[:, None]
        left = problem.variant.window[0] if problem.variant.window is not None else -1
        self._mask = self._valid & (slot >= lens[:, None] - 1 - left) if left >= 0 else self._valid
        kv = batch.kv
        if isinstance(kv, PagedKV):
            size = problem.page_size or 1
            pages = kv.indptr[:-1, None] + torch.arange(-(-longest // size))
            pages = pages.clamp(max=max(kv.indices.numel() - 1, 0))
            self._index = kv.indices.long()[pages] if kv.indices.numel() else pages.long() * 0
        else:
            start = kv.indptr[:-1, None]  # type: ignore[union-attr]
            self._index = torch.where(self._valid, start + slot, 0)

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, scale: float
    ) -> None:
        if not self._valid.numel():  # no key at all
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        self._index, self._valid, self._mask = (
            x.to(q.device) for x in (self._index, self._valid, self._mask)
        )
        keys, values = self._gather(k), self._gather(v)
        # [batch, 1, heads, dim] -> the group as query rows of its KV head: nothing is repeated.
        batch, heads, dim = q.shape
        packed = q.view(batch, keys.shape[2], heads // keys.shape[2], dim).transpose(1, 2)
        seen = _Seen(mask=self._mask[:, None, None])
        o, s = _attend(packed, keys, values, seen, scale, with_lse=lse is not None)
        out.copy_(o.transpose(1, 2).reshape(out.shape))
        if lse is not None and s is not None:
            lse.copy_(s.transpose(1, 2).reshape(lse.shape))

    def _gather(self, x: Tensor) -> Tensor:
        """``[batch, longest, kv_heads, dim]``; slots that no request owns are zeroed, not read."""
        if self._problem.kv == "paged":
            pages = x[self._index]
            if self._problem.layout == "HND":
                pages = pages.transpose(2, 3)
            found = pages.flatten(1, 2)[:, : self._valid.shape[1]]
        else:
            tokens = x if self._problem.layout == "NHD" else x.transpose(0, 1)
            if not tokens.shape[0]:
                return tokens.new_zeros(*self._valid.shape, *tokens.shape[1:])
            found = tokens[self._index]
        return found.masked_fill_(~self._valid[..., None, None], 0.0)  # a fresh copy: in place


def fold_scales(q: Tensor, scales: Scales, scale: float) -> tuple[Tensor, float]:
    """Scales of q and k into the queries (per head) or into the softmax scale (numbers)."""
    for value in (scales.q, scales.k):
        if not isinstance(value, Tensor):
            scale *= value
        else:
            group = q.shape[-2] // value.numel() if value.numel() > 1 else 1
            q = (q * _per_head(value, group)).to(q.dtype)
    return q, scale


def scale_output(out: Tensor, scale: float | Tensor, group: int) -> None:
    """Multiply ``out [..., heads, dim]`` by the scale of V, in place."""
    if isinstance(scale, Tensor):
        out.mul_(_per_head(scale, group).to(out.dtype))
    elif scale != 1.0:
        out.mul_(scale)


def _per_head(value: Tensor, group: int) -> Tensor:
    """``[heads, 1]`` per query head from one element or one for each (KV) head."""
    flat = value.reshape(-1)
    return (flat.repeat_interleave(group) if flat.numel() > 1 else flat).unsqueeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Which keys a row sees: those of a mask, those of a causal square, or all of them.

    ``mask`` broadcasts to [batch, heads, n, m]; SDPA's fused kernels know ``causal`` without one.
    """

    mask: Tensor | None = None
    causal: bool = False


def _seen(variant: Variant, n: int, m: int, custom: Tensor | None, device: torch.device) -> _Seen:
    left, right = variant.band
    everything = (left < 0 or left >= m - 1) and (right < 0 or n == 1)
    if custom is None and (everything or (left < 0 and right == 0 and n == m)):
        return _Seen(causal=not everything)
    mask = torch.ones(n, m, dtype=torch.bool, device=device)
    distance = torch.arange(m, device=device) - (torch.arange(n, device=device)[:, None] + m - n)
    if right >= 0:
        mask &= distance <= right
    if left >= 0:
        mask &= distance >= -left
    return _Seen(mask=mask if custom is None else custom & mask)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, seen: _Seen, scale: float, *, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """``[batch, len, heads, dim]`` in and out."""
    if not k.shape[1]:
        shape = (*q.shape[:-1], v.shape[-1])
        return q.new_zeros(shape), q.new_full(q.shape[:-1], -math.inf, dtype=torch.float32)
    if not q.shape[1] or not q.shape[0]:
        shape = (*q.shape[:-1], v.shape[-1])
        return q.new_zeros(shape), q.new_zeros(q.shape[:-1], dtype=torch.float32)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        seen.mask,
        is_causal=seen.causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if seen.mask is not None:  # what SDPA gives for a row that sees no key differs by backend
        out = out.masked_fill(~seen.mask.any(-1, keepdim=True), 0.0)
    return out.transpose(1, 2), _lse(q, k, seen, scale) if with_lse else None


def _lse(q: Tensor, k: Tensor, seen: _Seen, scale: float) -> Tensor:
    """``[batch, len, heads]`` from the scores, formed anew in float32."""
    grouped = q.unflatten(1, (k.shape[1], -1)).float()
    scores = torch.einsum("bhgnd,bhmd->bhgnm", grouped, k.float()).flatten(1, 2) * scale
    mask = seen.mask
    if seen.causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.logsumexp(scores, -1).transpose(1, 2)


class _Planner:
    def plan(self, problem: AttentionProblem) -> _Plan:
        """A plan that routes each batch."""
        return _Plan(problem)


attention = _Planner()
