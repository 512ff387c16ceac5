"""What the conformance suite computes for each feature of attention: variants, parameters, scales.

Every problem is called at least twice, with the first and the second of two sets of numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import Scales
from attnhub.attn.problem import FP8, AttentionProblem
from attnhub.testing.generators import random_tensor, seeded
from attnhub.variant import Rope, ScalarParam, TensorParam, Variant

_BIAS = TensorParam("bias", ndim=1)
_GAIN = ScalarParam("gain")

_Fields = dict[str, Any]


def _both(**fields: Any) -> tuple[_Fields, _Fields]:
    return fields, fields


#: Feature -> the fields of a variant that uses it, for the first and for the second call.
FEATURES: Mapping[str, tuple[_Fields, _Fields]] = {
    "causal": _both(causal=True),
    "window": ({"window": (2, 1)}, {"window": (5, -1)}),
    "soft_cap": ({"soft_cap": 2.5}, {"soft_cap": 20.0}),
    "alibi": _both(alibi=True),
    "sinks": _both(sinks=True),
    "rope": ({"rope": Rope()}, {"rope": Rope(theta=500.0, rotary_dim=16, interleaved=True)}),
    "score_mod": _both(
        score_mod=lambda score, b, h, q_idx, kv_idx: score - _BIAS[h] * (q_idx - kv_idx)
    ),
    "mask_mod": _both(mask_mod=lambda b, h, q_idx, kv_idx: (q_idx - kv_idx + h) % 3 != 1),
    "query_mod": _both(query_mod=lambda x, b, h, q_idx, d: x / (h + 1.0)),
    "key_mod": _both(key_mod=lambda x, b, h_kv, kv_idx, d: x * (1.0 + 0.004 * d)),
    "output_mod": _both(output_mod=lambda x, b, h, q_idx, d: x * _GAIN),
    "softmax_off": _both(softmax=False),
}


@functools.cache
def variant_of(features: frozenset[str], which: int = 0) -> Variant:
    """A variant that uses exactly these features; ``which`` is 0 or 1."""
    fields: _Fields = {}
    for name in sorted(features):
        fields |= FEATURES[name][which]
    return Variant(**fields)


def params_of(problem: AttentionProblem, device: torch.device) -> dict[str, Tensor | float]:
    """A value for each run-time parameter of the problem's variant."""
    heads = problem.num_qo_heads
    generator = seeded(heads)
    values: dict[str, Tensor | float] = {
        "alibi_slopes": torch.exp2(-torch.arange(1.0, heads + 1)).to(device),
        "sinks": random_tensor((heads,), torch.float32, device, generator),
        "bias": random_tensor((heads,), torch.float32, device, generator, scale=0.05),
        "gain": 1.5,
    }
    return {spec.name: values[spec.name] for spec in variant_of(problem.features).params}


def scales_of(problem: AttentionProblem, which: int, device: torch.device) -> Scales:
    """Numbers, one-element and per-head tensors; none in the first call without float8."""
    if problem.q_dtype not in FP8 and problem.kv_dtype not in FP8:
        return Scales(q=0.5, k=1.5, v=0.75) if which else Scales()

    def per_head(n: int) -> Tensor:
        return torch.linspace(0.5, 1.5, n, device=device)

    if which:
        return Scales(q=per_head(problem.num_qo_heads), k=per_head(problem.num_kv_heads), v=1.25)
    return Scales(q=0.5, k=torch.tensor([0.75], device=device), v=per_head(problem.num_kv_heads))
