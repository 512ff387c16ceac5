"""Dense attention by ``flex_attention``, in float32."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from attnhub.plugin import Scales, Variant

Mod = Callable[..., Any]
#: What it returns depends on its arguments, and its annotation names every form.
_flex_attention: Callable[..., Any] = flex_attention


class FlexPlan:
    """Attention with the variant of one problem; nothing else depends on the problem."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant

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
        """Write ``out`` and ``lse``; all tensors are ``[batch, len, heads(, dim)]``."""
        if not q.numel() or not k.numel():  # no row, or rows that see no key
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        q, k, v = (_heads_first(x, s) for x, s in ((q, scales.q), (k, scales.k), (v, scales.v)))
        with warnings.catch_warnings():
            # Compiling is what makes it fast, and more than an example needs.
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            result, extra = _flex_attention(
                q,
                k,
                v,
                score_mod=self._score_mod(k.shape[2] - q.shape[2], params),
                block_mask=self._block_mask(q, k, mask),
                scale=self._variant.scale,
                enable_gqa=True,
                return_aux=AuxRequest(lse=True),
            )
        out.copy_(result.transpose(1, 2))
        if lse is not None:
            lse.copy_(extra.lse.transpose(1, 2))

    def _score_mod(self, shift: int, params: Mapping[str, Tensor | float]) -> Mod | None:
        cap = self._variant.soft_cap
        slopes: Any = params.get("alibi_slopes")
        if cap is None and slopes is None:
            return None

        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if cap is not None:
                score = cap * torch.tanh(score / cap)
            # AttnHub aligns the last query with the last key; FlexAttention the first ones.
            return score if slopes is None else score + slopes[h] * (j - (i + shift))

        return score_mod

    def _block_mask(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Any:
        left, right = self._variant.band
        if (left, right) == (-1, -1) and mask is None:
            return None
        batch, _, n, _ = q.shape
        m = k.shape[2]
        low = -left if left >= 0 else -m - n
        high = right if right >= 0 else m + n
        custom = None if mask is None else mask.expand(batch, n, m)

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            distance = j - (i + m - n)
            seen = (distance >= low) & (distance <= high)
            return seen if custom is None else seen & custom[b, i, j]

        return create_block_mask(mask_mod, batch, None, n, m, device=q.device)


def _heads_first(x: Tensor, scale: float | Tensor) -> Tensor:
    """``[batch, heads, len, dim]`` in float32, multiplied by a number or one a head."""
    if isinstance(scale, Tensor):
        scale = scale.view(-1, 1)
    return (x.float() * scale).transpose(1, 2)


class FlexPlanner:
    """What the manifest's ``load`` names."""

    def plan(self, problem: Any) -> FlexPlan:
        """A plan for any problem that the capability sheet lets through."""
        return FlexPlan(problem.variant)


planner = FlexPlanner()
