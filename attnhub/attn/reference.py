"""What attention means: one request, dense K and V, in plain PyTorch.

Computed in float32 (float64 for float64 queries). Every backend is compared with this function,
and this function with an independent loop in the tests.

Order of the steps: dequantise -> query/key transform -> RoPE -> scale * q.k -> soft cap -> ALiBi
-> score_mod -> masks -> softmax (with sinks) -> weights times V -> output transform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnhub.attn.kv import Scales
from attnhub.rope import reference as rope
from attnhub.variant import Variant
from attnhub.variant.torch_emitter import evaluate

#: Query rows at a time, so that the score matrix of a long prompt stays within reason.
CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Facts of one request: its index in the batch, its RoPE offsets, and what it may see.

    ``visible`` is a bool mask ``[qo_len, kv_len]`` or ``[kv_heads, qo_len, kv_len]``, or None.
    """

    index: int = 0
    q_offset: int | None = None
    k_offset: int = 0
    visible: Tensor | None = None
    scales: Scales = field(default_factory=Scales)
    params: Mapping[str, Tensor | float] = field(default_factory=dict)


def attend(
    q: Tensor, k: Tensor, v: Tensor, variant: Variant, request: Request
) -> tuple[Tensor, Tensor]:
    """Attention of one request.

    Args:
        q: ``[qo_len, qo_heads, dim_qk]``.
        k: ``[kv_len, kv_heads, dim_qk]``.
        v: ``[kv_len, kv_heads, dim_vo]``.
        variant: what is computed between the two products.
        request: the request's own facts.

    Returns:
        Output ``[qo_len, qo_heads, dim_vo]`` and natural-log LSE ``[qo_len, qo_heads]``, both in
        the precision of the computation. A row that sees no key is 0 with LSE -inf.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    shift = k.shape[0] - q.shape[0]
    q, k, v = _prepare(q.to(dtype), k.to(dtype), v.to(dtype), variant, request)
    outputs, lses = [], []
    for start in range(0, max(q.shape[0], 1), CHUNK):
        rows = q[start : start + CHUNK]
        q_idx = torch.arange(start, start + rows.shape[0], device=q.device) + shift
        out, lse = _rows(rows, q_idx, k, v, variant, request)
        outputs.append(out)
        lses.append(lse)
    return torch.cat(outputs), torch.cat(lses)


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, variant: Variant, request: Request
) -> tuple[Tensor, Tensor, Tensor]:
    """Dequantise, transform and rotate."""
    scales, params = request.scales, request.params
    q, k, v = (_scaled(x, s) for x, s in ((q, scales.q), (k, scales.k), (v, scales.v)))
    shift = k.shape[0] - q.shape[0]
    if query_mod := variant.hook("query_mod"):
        q = evaluate(query_mod, _channels("q_idx", q, shift, request.index), params).expand_as(q)
    if key_mod := variant.hook("key_mod"):
        k = evaluate(key_mod, _channels("kv_idx", k, 0, request.index), params).expand_as(k)
    if variant.rope is not None:
        first = shift if request.q_offset is None else request.q_offset
        q = rope.apply_rope(q, _positions(q, first), variant.rope)
        k = rope.apply_rope(k, _positions(k, request.k_offset), variant.rope)
    return q, k, v


def _scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    if isinstance(scale, Tensor):
        return x * scale.to(x.dtype).reshape(-1, 1)
    return x if scale == 1.0 else x * scale


def _positions(x: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + x.shape[0], device=x.device)


def _channels(index: str, x: Tensor, first: int, b: int) -> dict[str, Tensor]:
    """Inputs of an elementwise hook over ``x [len, heads, dim]``."""
    length, heads, dim = x.shape
    device = x.device
    head = "h_kv" if index == "kv_idx" else "h"
    return {
        "x": x,
        "b": torch.tensor(b, device=device),
        head: torch.arange(heads, device=device).view(1, -1, 1),
        index: _positions(x, first).view(length, 1, 1),
        "d": torch.arange(dim, device=device).view(1, 1, -1),
    }


def _rows(
    q: Tensor, q_idx: Tensor, k: Tensor, v: Tensor, variant: Variant, request: Request
) -> tuple[Tensor, Tensor]:
    """A chunk of query rows against every key."""
    n, heads, _ = q.shape
    if n == 0 or k.shape[0] == 0:
        return (
            q.new_zeros(n, heads, v.shape[-1]),
            q.new_full((n, heads), -math.inf),
        )
    index = {
        "b": torch.tensor(request.index, device=q.device),
        "h": torch.arange(heads, device=q.device).view(-1, 1, 1),
        "q_idx": q_idx.view(1, -1, 1),
        "kv_idx": torch.arange(k.shape[0], device=q.device).view(1, 1, -1),
    }
    visible = _visible(variant, index, request, (heads, n, k.shape[0]))
    scores = _scores(q, k, variant, index, visible, request.params)
    weights, lse = _weights(scores, visible, variant, request.params)
    out = _grouped(weights, v)
    if output_mod := variant.hook("output_mod"):
        inputs = _channels("q_idx", out, int(q_idx[0]), request.index)
        out = evaluate(output_mod, inputs, request.params).expand_as(out)
    out = out.masked_fill(~visible.any(-1).T.unsqueeze(-1), 0.0)
    return out, lse.T


def _grouped(weights: Tensor, v: Tensor) -> Tensor:
    """``weights [heads, n, m]`` times ``v [m, kv_heads, dim]`` -> ``[n, heads, dim]``."""
    heads, n, m = weights.shape
    grouped = weights.view(v.shape[1], -1, m)
    return torch.bmm(grouped, v.transpose(0, 1)).view(heads, n, -1).transpose(0, 1)


def _scores(
    q: Tensor,
    k: Tensor,
    variant: Variant,
    index: dict[str, Tensor],
    visible: Tensor,
    params: Mapping[str, Tensor | float],
) -> Tensor:
    """Scores before masking, ``[heads, n, m]``."""
    n, heads, dim = q.shape
    scale = variant.scale if variant.scale is not None else 1.0 / math.sqrt(dim)
    grouped = q.transpose(0, 1).reshape(k.shape[1], -1, dim)
    scores = torch.bmm(grouped, k.permute(1, 2, 0)).view(heads, n, -1) * scale
    if variant.soft_cap is not None:
        scores = variant.soft_cap * torch.tanh(scores / variant.soft_cap)
    if variant.alibi:
        slopes = torch.as_tensor(params["alibi_slopes"], device=q.device, dtype=scores.dtype)
        distance = (index["kv_idx"] - index["q_idx"]).to(scores.dtype)
        scores = scores + slopes.view(-1, 1, 1) * distance
    if score_mod := variant.hook("score_mod"):
        inputs = {"score": scores, **index}
        scores = evaluate(score_mod, inputs, params, visible=visible).expand_as(scores)
    return scores


def _visible(
    variant: Variant, index: dict[str, Tensor], request: Request, shape: tuple[int, int, int]
) -> Tensor:
    """Which keys each row sees, ``[heads, n, m]`` bool."""
    q_idx, kv_idx = index["q_idx"], index["kv_idx"]
    visible = torch.ones(shape, dtype=torch.bool, device=q_idx.device)
    if variant.causal:
        visible &= kv_idx <= q_idx
    if variant.window is not None:
        left, right = variant.window
        if left >= 0:
            visible &= kv_idx >= q_idx - left
        if right >= 0:
            visible &= kv_idx <= q_idx + right
    if request.visible is not None:
        custom = request.visible
        if custom.dim() == 3:  # per KV head
            custom = custom.repeat_interleave(shape[0] // custom.shape[0], 0)
        shift = kv_idx.shape[-1] - custom.shape[-2]
        visible &= custom[..., (q_idx.view(-1) - shift), :]
    if mask_mod := variant.hook("mask_mod"):
        visible &= evaluate(mask_mod, index, request.params, visible=visible)
    return visible


def _weights(
    scores: Tensor, visible: Tensor, variant: Variant, params: Mapping[str, Tensor | float]
) -> tuple[Tensor, Tensor]:
    """Weights ``[heads, n, m]`` (0 where masked) and LSE ``[heads, n]``."""
    if not variant.softmax:
        return scores.masked_fill(~visible, 0.0), scores.new_full(scores.shape[:2], -math.inf)
    scores = scores.masked_fill(~visible, -math.inf)
    top = scores.amax(-1)
    sink = None
    if variant.sinks:
        sink = torch.as_tensor(params["sinks"], device=scores.device, dtype=scores.dtype).view(
            -1, 1
        )
        top = torch.maximum(top, sink)
    top = top.masked_fill(top == -math.inf, 0.0)  # exp(-inf - -inf) would be NaN
    weights = torch.exp(scores - top.unsqueeze(-1))
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - top)
    empty = ~visible.any(-1)
    lse = (top + torch.log(total)).masked_fill(empty, -math.inf)
    return weights / total.masked_fill(total == 0, 1.0).unsqueeze(-1), lse
