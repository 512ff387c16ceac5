"""Rotary embedding whose cosines and sines are looked up."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.launch import overlap
from attnhub_triton_misc.rotation import Rotation, load_angles, turn_both


@triton.jit
def _apply_rope_cos_sin(
    q, q_out,
    k, k_out,
    positions,
    cache, cache_row,
    HALF: tl.constexpr, TAIL: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``(a cos - b sin, b cos + a sin)`` of each pair, by row ``position`` of ``cache``."""
    overlap(PDL)
    token = tl.program_id(0).to(tl.int64)
    cos, sin = load_angles(cache, cache_row, tl.load(positions + token), HALF)
    turn_both(q, q_out, k, k_out, token, cos, sin, HALF, TAIL, INTERLEAVED, HEADS)


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._rotation = Rotation(problem)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor,
        cache: Tensor,
        q_out: Tensor,
        k_out: Tensor,
        interleaved: bool,  # noqa: FBT001 - the order of the op's schema; the problem holds it too
    ) -> None:
        angles = positions, cache, cache.stride(0)
        self._rotation.run(_apply_rope_cos_sin, q, k, q_out, k_out, *angles)


class _ApplyRopeCosSin:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


apply_rope_cos_sin = _ApplyRopeCosSin()
