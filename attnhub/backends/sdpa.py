"""``torch_sdpa``: what ``scaled_dot_product_attention`` can do, on CPU and GPU.

Three routes, chosen when a batch is planned: dense tensors go to SDPA as they are; a batch of
decode rows of like lengths is gathered into one padded call, its GQA group packed into the query
rows; anything else is one call a request, so that nothing is padded to another's length.

SDPA rounds to the dtype it is given. Where that would be a second rounding, or could overflow (the
output has another dtype, V has a scale, or a scale is a tensor), it is given float32. It returns no
LSE; where that is asked for, the scores are formed a second time.
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
from attnhub.backends.precision import without_autocast
from attnhub.variant import Variant

#: A padded gather may read this many times the keys that there are.
_PADDING = 2


class Plan:
    """Routes a batch; see the module docstring."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        self._variant = problem.variant
        self._batch: AttentionBatch | None = None
        self._decode: _Decode | None = None

    def update(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._decode = _Decode(batch, self._problem) if _is_even_decode(batch) else None

    @without_autocast
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
        q, factors = _fold(q, out, scales, softmax_scale(self._problem))
        if self._batch is None:
            self._dense(q, k, v, out, lse, mask, factors)
        elif self._decode is not None:
            self._decode.run(q, k, v, out, lse, factors)
        else:
            self._each(q, k, v, out, lse, factors)

    def _dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        factors: _Factors,
    ) -> None:
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        seen = _seen(self._variant, q.shape[1], k.shape[1], mask, q.device)
        o, s = _attend(q, k, v, seen, factors, with_lse=lse is not None)
        out.copy_(o)
        if lse is not None and s is not None:
            lse.copy_(s)

    def _each(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, factors: _Factors
    ) -> None:
        assert self._batch is not None
        for r in rows.requests(self._batch, self._problem, k, v):
            x = q[r.rows]
            seen = _seen(self._variant, x.shape[0], r.k.shape[0], r.visible, q.device)
            o, s = _attend(x[None], r.k[None], r.v[None], seen, factors, with_lse=lse is not None)
            out[r.rows] = o[0].to(out.dtype)
            if lse is not None and s is not None:
                lse[r.rows] = s[0]


def _is_even_decode(batch: AttentionBatch) -> bool:
    """One query a request, and keys of so like lengths that padding them is little waste."""
    if batch.qo_lens is None or not batch.kv_lens or batch.mask is not None:
        return False
    padded = len(batch.kv_lens) * batch.kv_lens.longest
    is_decode = batch.qo_lens.shortest == batch.qo_lens.longest == 1
    return is_decode and padded <= _PADDING * batch.kv_lens.total


class _Decode:
    """One query row a request: a padded gather, then one SDPA call."""

    def __init__(self, batch: AttentionBatch, problem: AttentionProblem) -> None:
        assert batch.kv_lens is not None
        self._problem = problem
        host = torch.device("cpu")
        lens = torch.from_numpy(batch.kv_lens.values)
        longest = batch.kv_lens.longest
        slot = torch.arange(longest, device=host)
        self._valid = slot < lens[:, None]
        left = problem.variant.window[0] if problem.variant.window is not None else -1
        self._mask = self._valid & (slot >= lens[:, None] - 1 - left) if left >= 0 else self._valid
        kv = batch.kv
        first = kv.indptr[:-1, None]  # type: ignore[union-attr]
        self._ids: Tensor | None = None
        if isinstance(kv, PagedKV):
            slot = torch.arange(-(-longest // (problem.page_size or 1)), device=host)
            self._ids = kv.indices
            self._index = (first + slot).clamp_(max=max(kv.indices.numel() - 1, 0))
        else:
            self._index = torch.where(self._valid, first + slot, 0)

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, factors: _Factors
    ) -> None:
        if not self._valid.numel():  # no key at all
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        self._move(q.device)
        keys, values = self._gather(k), self._gather(v)
        # [batch, 1, heads, dim] -> the group as query rows of its KV head: nothing is repeated.
        batch, heads, dim = q.shape
        packed = q.view(batch, keys.shape[2], heads // keys.shape[2], dim).transpose(1, 2)
        seen = _Seen(mask=self._mask[:, None, None])
        o, s = _attend(packed, keys, values, seen, factors, with_lse=lse is not None)
        out.copy_(o.transpose(1, 2).reshape(out.shape))
        if lse is not None and s is not None:
            lse.copy_(s.transpose(1, 2).reshape(lse.shape))

    def _move(self, device: torch.device) -> None:
        """What was laid out on the host, on the first run: page ids may lie on the device."""
        self._index, self._valid, self._mask = (
            x.to(device) for x in (self._index, self._valid, self._mask)
        )
        if self._ids is not None:
            self._index, self._ids = self._ids.to(device, torch.int64)[self._index], None

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


def softmax_scale(problem: AttentionProblem) -> float:
    """What scores are multiplied by, scales of q and k apart."""
    return problem.variant.scale or 1.0 / math.sqrt(problem.head_dim_qk)


def rounds_twice(q: Tensor, out: Tensor, scales: Scales) -> bool:
    """Whether a kernel that computes in the dtype of q would round, or overflow, on the way."""
    if q.dtype == torch.float32:
        return False
    tensors = isinstance(scales.q, Tensor) or isinstance(scales.k, Tensor)
    return out.dtype != q.dtype or tensors or isinstance(scales.v, Tensor) or scales.v != 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """What scores and values are multiplied by; ``v`` is a number or ``[kv_heads or 1, 1]``."""

    scores: float
    v: float | Tensor


def _fold(q: Tensor, out: Tensor, scales: Scales, scores: float) -> tuple[Tensor, _Factors]:
    """Numbers of q and k into the factor of the scores, tensors into the queries."""
    if rounds_twice(q, out, scales):
        q = q.float()
    for value in (scales.q, scales.k):
        if not isinstance(value, Tensor):
            scores *= value
        else:
            group = q.shape[-2] // value.numel() if value.numel() > 1 else 1
            q = q * _per_head(value, group)
    v = scales.v.reshape(-1, 1) if isinstance(scales.v, Tensor) else scales.v
    return q, _Factors(scores=scores, v=v)


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
    q: Tensor, k: Tensor, v: Tensor, seen: _Seen, factors: _Factors, *, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """``[batch, len, heads, dim]`` in and out, computed in the dtype of q."""
    if not k.shape[1]:
        shape = (*q.shape[:-1], v.shape[-1])
        return q.new_zeros(shape), q.new_full(q.shape[:-1], -math.inf, dtype=torch.float32)
    if not q.shape[1] or not q.shape[0]:
        shape = (*q.shape[:-1], v.shape[-1])
        return q.new_zeros(shape), q.new_zeros(q.shape[:-1], dtype=torch.float32)
    v = v.to(q.dtype)
    if isinstance(factors.v, Tensor) or factors.v != 1.0:
        v = v * factors.v
    q, k, v = (x.transpose(1, 2) for x in (q, k.to(q.dtype), v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        seen.mask,
        is_causal=seen.causal,
        scale=factors.scores,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if seen.mask is not None:  # what SDPA gives for a row that sees no key differs by backend
        out = out.masked_fill(~seen.mask.any(-1, keepdim=True), 0.0)
    return out.transpose(1, 2), _lse(q, k, seen, factors.scores) if with_lse else None


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
    def plan(self, problem: AttentionProblem) -> Plan:
        """A plan that routes each batch."""
        return Plan(problem)


attention = _Planner()
