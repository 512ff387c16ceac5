"""What ``BatchMLA`` takes besides tensors, and the checks of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import GraphLimits, PagedKV
from attnhub.attn import inputs as attn
from attnhub.core import check


@dataclass(frozen=True, slots=True)
class MLAScales:
    """What stored latent rows are multiplied by: numbers or one-element float32 tensors.

    ``ckv`` for the latent rows, as keys and as values; ``kpe`` for their rotary part.
    """

    ckv: float | Tensor = 1.0
    kpe: float | Tensor = 1.0


NO_SCALES = MLAScales()


def scales(given: MLAScales, device: torch.device) -> None:
    """Check both scales."""
    if not isinstance(given, MLAScales):
        check.fail(f"scales is a {type(given).__name__}, needs MLAScales(ckv=..., kpe=...)")
    for name, value in (("scales.ckv", given.ckv), ("scales.kpe", given.kpe)):
        attn.scale(value, name)
        if isinstance(value, Tensor):
            check.device(value, name, device, "q_nope")


def num_heads(given: Any) -> int:
    """Check the number of query heads."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        check.fail(f"num_heads={given!r}: needs an integer >= 1")
    return given


def softmax_scale(given: float | None, head_dim: tuple[int, int]) -> float:
    """Check the softmax scale; there is no default that would be right."""
    ckv, kpe = head_dim
    if given is None:
        check.fail(
            "scale is not given, and the cache cannot tell it: it is 1/sqrt of the head dim "
            "*before* absorption. DeepSeek's heads have 128 + 64, so scale=(128 + 64) ** -0.5 "
            "(times the YaRN factor, where the model has one), "
            f"not 1/sqrt({ckv} + {kpe})"
        )
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not math.isfinite(given) or given <= 0:
        check.fail(f"scale={given!r}: needs a finite number > 0, such as (128 + 64) ** -0.5")
    return float(given)


def graph_limits(given: GraphLimits | None) -> None:
    """Refuse limits for what latent attention does not have."""
    if isinstance(given, GraphLimits) and (given.max_mask_bytes or given.offsets):
        check.fail(
            "BatchMLA has no custom mask and no RoPE offsets; "
            "leave max_mask_bytes and offsets out of GraphLimits"
        )


def page_table(given: PagedKV) -> None:
    """Require attention's page table."""
    if not isinstance(given, PagedKV):
        check.fail(
            f"kv_metadata is a {type(given).__name__}, "
            "needs PagedKV(indptr, indices, last_page_len)"
        )


def caches(kv: tuple[Tensor, Tensor], head_dim: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The latent rows and their rotary part."""
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        ckv, kpe = head_dim
        check.fail(
            f"kv is a {type(kv).__name__}, needs a tuple (ckv_cache, kpe_cache); of one tensor "
            f"[pages, page_size, {ckv + kpe}] give the slices cache.split([{ckv}, {kpe}], -1)"
        )
    for name, x in zip(("ckv_cache", "kpe_cache"), kv, strict=True):
        check.is_tensor(x, name)
    return kv[0], kv[1]
