"""Mods as users write them; each factory takes parameters by name, symbolic ones or tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from attnhub.variant import ScalarParam, TensorParam, and_masks, or_masks

BATCH, HEADS, QO_LEN, KV_LEN, DIM = 2, 3, 5, 7, 4
WIDTH = 3  # of the picture in neighborhood


@dataclass(frozen=True, kw_only=True)
class Case:
    """`make(params)` returns the mod; `params` are its run-time values."""

    name: str
    make: Callable[[Any], Callable[..., Any]]
    hook: str = "score_mod"
    params: dict[str, Any] = field(default_factory=dict)

    def symbolic(self) -> Callable[..., Any]:
        """The mod with declared parameters, to be traced."""
        declared = {}
        for name, value in self.params.items():
            dtype = str(getattr(value, "dtype", "float32")).removeprefix("torch.")
            ndim = getattr(value, "ndim", 0)
            declared[name] = TensorParam(name, ndim, dtype) if ndim else ScalarParam(name, dtype)
        return self.make(declared)

    def concrete(self) -> Callable[..., Any]:
        """The same mod on the values themselves, to be called with tensors."""
        return self.make(self.params)


def inputs(hook: str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Arguments of a hook that broadcast to [batch, heads, rows, columns]."""
    rows, columns = (QO_LEN, KV_LEN) if hook in ("score_mod", "mask_mod") else (QO_LEN, DIM)
    generator = torch.Generator().manual_seed(7)
    values = 3 * torch.randn(BATCH, HEADS, rows, columns, generator=generator, dtype=dtype)
    grid = {
        "b": torch.arange(BATCH)[:, None, None, None],
        "h": torch.arange(HEADS)[:, None, None],
        "q_idx": torch.arange(rows)[:, None] + KV_LEN - QO_LEN,
    }
    if hook == "score_mod":
        return {"score": values, **grid, "kv_idx": torch.arange(columns)}
    if hook == "mask_mod":
        return {**grid, "kv_idx": torch.arange(columns)}
    if hook == "key_mod":
        return {
            "x": values,
            "b": grid["b"],
            "h_kv": grid["h"],
            "kv_idx": torch.arange(rows)[:, None],
            "d": torch.arange(columns),
        }
    return {"x": values, **grid, "d": torch.arange(columns)}


def _relative(p):
    return lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)


def _alibi(p):
    return lambda score, b, h, q_idx, kv_idx: score + p["slopes"][h] * (kv_idx - q_idx)


def _alibi_computed(p):
    def mod(score, b, h, q_idx, kv_idx):
        slope = torch.exp2(-((h + 1) * 8.0 / HEADS))
        return score + (kv_idx - q_idx) * slope

    return mod


def _soft_cap(p):
    def mod(score, b, h, q_idx, kv_idx):
        score = score / 20
        score = torch.tanh(score)
        return score * 20

    return mod


def _causal_score(p):
    return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, -float("inf"))


def _checkerboard(p):
    def mod(score, b, h, q_idx, kv_idx):
        score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
        return torch.where(kv_idx == q_idx, score * 2.0, score)

    return mod


def _causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def _sliding_window(p):
    return and_masks(_causal, lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= 3)


def _prefix(p):
    return or_masks(_causal, lambda b, h, q_idx, kv_idx: kv_idx < p["prefix_length"][b])


def _document(p):
    def mod(b, h, q_idx, kv_idx):
        same = p["document_id"][b, q_idx] == p["document_id"][b, kv_idx]
        return same & _causal(b, h, q_idx, kv_idx)

    return mod


def _neighborhood(p):
    """Neighbours on a picture of WIDTH columns, the window pushed inside at the edges."""

    def mod(b, h, q_idx, kv_idx):
        q_x, q_y = q_idx // WIDTH, q_idx % WIDTH
        kv_x, kv_y = kv_idx // WIDTH, kv_idx % WIDTH
        center = q_x.clamp(1, WIDTH - 2)
        return ((center - kv_x).abs() <= 1) & ((q_y - kv_y).abs() <= 1)

    return mod


def _dilated(p):
    def mod(b, h, q_idx, kv_idx):
        distance = torch.abs(q_idx - kv_idx)
        return torch.logical_and(distance <= 4, torch.logical_not(distance % 2)) | (kv_idx == 0)

    return mod


def _bucketed(p):
    """Logarithmic buckets of the distance, as T5 has them."""

    def mod(score, b, h, q_idx, kv_idx):
        distance = torch.clamp(q_idx - kv_idx, min=0)
        far = 2 + (torch.log((distance + 1) / 2) / 0.4).to(torch.int64)
        return score + p["table"][h, torch.where(distance < 2, distance, far).clamp(max=3)]

    return mod


def _table(p):
    return lambda score, b, h, q_idx, kv_idx: score + p["bias"][h, kv_idx - q_idx + 8]


def _sigmoid(p):
    return lambda score, b, h, q_idx, kv_idx: torch.sigmoid(p["alpha"] * score - 1)


def _activations(p):
    def mod(score, b, h, q_idx, kv_idx):
        first = F.silu(score) + F.softplus(score, beta=2.0, threshold=5.0) + torch.sign(score)
        return first + F.relu(score - h) - 0.5 * score * (1 + torch.erf(score * 0.7071))

    return mod


def _gaussian(p):
    def mod(score, b, h, q_idx, kv_idx):
        return score * torch.exp(-((q_idx - kv_idx) ** 2) / (2.0**h + 1)) + torch.pow(score, 3)

    return mod


def _logarithms(p):
    def mod(score, b, h, q_idx, kv_idx):
        size = abs(score) + 1e-3
        logs = torch.log(size) - torch.log2(size) + torch.log1p(size) + size**0.5
        return logs + torch.sqrt(size) * torch.rsqrt(size + 1) + torch.floor(score)

    return mod


def _bits(p):
    """Pairs whose positions have the same lowest two bits, flipped for odd heads."""
    return lambda b, h, q_idx, kv_idx: (((q_idx ^ kv_idx) & 3) == 0) ^ (h % 2 == 1) & ~(b == 1)


def _logical(p):
    def mod(b, h, q_idx, kv_idx):
        either = torch.logical_or(q_idx < kv_idx, p["skip"][b])
        return torch.logical_xor(either, torch.logical_not(h == 1)) | (kv_idx != 3) & (q_idx > 4)

    return mod


def _rotation(p):
    def mod(x, b, h, q_idx, d):
        angle = q_idx * 10.0 ** (-2.0 * (d // 2) / DIM)
        return x * torch.cos(angle) + torch.sin(angle)

    return mod


def _key_gain(p):
    return lambda x, b, h_kv, kv_idx, d: torch.maximum(x, 0.1 * x) * p["gain"][h_kv, d]


def _output_gate(p):
    return lambda x, b, h, q_idx, d: x * torch.sigmoid(p["gate"][b, q_idx - 2] + x) / (1 + h)


_RAMP = torch.arange(48, dtype=torch.float32) / 16 - 1

CASES = [
    Case(name="relative", make=_relative),
    Case(name="alibi", make=_alibi, params={"slopes": _RAMP[:HEADS]}),
    Case(name="alibi_computed", make=_alibi_computed),
    Case(name="soft_cap", make=_soft_cap),
    Case(name="causal_score", make=_causal_score),
    Case(name="checkerboard", make=_checkerboard),
    Case(name="sliding_window", make=_sliding_window, hook="mask_mod"),
    Case(
        name="prefix",
        make=_prefix,
        hook="mask_mod",
        params={"prefix_length": torch.tensor([2, 6], dtype=torch.int32)},
    ),
    Case(
        name="document",
        make=_document,
        hook="mask_mod",
        params={"document_id": torch.tensor([[0, 0, 0, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 5]])},
    ),
    Case(name="neighborhood", make=_neighborhood, hook="mask_mod"),
    Case(name="dilated", make=_dilated, hook="mask_mod"),
    Case(name="bucketed", make=_bucketed, params={"table": _RAMP[:12].reshape(HEADS, 4)}),
    Case(name="table", make=_table, params={"bias": _RAMP.reshape(HEADS, 16)}),
    Case(name="sigmoid", make=_sigmoid, params={"alpha": 0.5}),
    Case(name="activations", make=_activations),
    Case(name="gaussian", make=_gaussian),
    Case(name="logarithms", make=_logarithms),
    Case(name="bits", make=_bits, hook="mask_mod"),
    Case(
        name="logical",
        make=_logical,
        hook="mask_mod",
        params={"skip": torch.tensor([False, True])},
    ),
    Case(name="rotation", make=_rotation, hook="query_mod"),
    Case(
        name="key_gain",
        make=_key_gain,
        hook="key_mod",
        params={"gain": _RAMP[:12].reshape(HEADS, DIM)},
    ),
    Case(
        name="output_gate",
        make=_output_gate,
        hook="output_mod",
        params={"gate": _RAMP[:10].reshape(BATCH, QO_LEN)},
    ),
]
