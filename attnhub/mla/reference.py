"""What latent attention means: one request, in plain PyTorch.

It is attention with one KV head that all query heads share: a key is the latent row with its rotary
part behind it, a value is the latent row alone. So attention's reference computes it, and the tests
compare it with an independent loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.attn import reference
from attnhub.mla.inputs import NO_SCALES, MLAScales
from attnhub.variant import Variant


def attend(
    q_nope: Tensor,
    q_pe: Tensor,
    ckv: Tensor,
    kpe: Tensor,
    *,
    scale: float,
    causal: bool,
    scales: MLAScales = NO_SCALES,
) -> tuple[Tensor, Tensor]:
    """Latent attention of one request.

    Args:
        q_nope: ``[qo_len, heads, dim_ckv]``, W_UK absorbed.
        q_pe: ``[qo_len, heads, dim_kpe]``, rotated.
        ckv: ``[kv_len, dim_ckv]``, the latent rows.
        kpe: ``[kv_len, dim_kpe]``, their rotary part.
        scale: what scores are multiplied by.
        causal: bottom-right aligned.
        scales: what stored rows are multiplied by.

    Returns:
        Output ``[qo_len, heads, dim_ckv]`` and natural-log LSE ``[qo_len, heads]``, in float32
        (float64 for float64 queries). A row that sees no key is 0 with LSE -inf.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.

    Example::

        out, lse = attend(q_nope, q_pe, ckv, kpe, scale=(128 + 64) ** -0.5, causal=True)
    """
    dtype = torch.float64 if q_nope.dtype == torch.float64 else torch.float32
    values = _scaled(ckv.to(dtype), scales.ckv).unsqueeze(1)
    rotary = _scaled(kpe.to(dtype), scales.kpe).unsqueeze(1)
    return reference.attend(
        torch.cat([q_nope, q_pe], -1),
        torch.cat([values, rotary], -1),
        values,
        Variant(causal=causal, scale=scale),
        reference.Request(),
    )


def _scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    return x * (scale.reshape(()) if isinstance(scale, Tensor) else scale)
