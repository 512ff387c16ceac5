"""Rotary embedding whose angles are computed on the fly."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.frequencies import Frequencies, KnownFrequencies
from attnhub_triton_misc.launch import overlap
from attnhub_triton_misc.rotation import Rotation, turn_both


@triton.jit
def _apply_rope(
    q, q_out,
    k, k_out,
    positions,
    frequencies, factor,
    HALF: tl.constexpr, TAIL: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``(a cos - b sin, b cos + a sin)`` of each pair, at the angle ``position * frequency``."""
    overlap(PDL)
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, triton.next_power_of_2(HALF))[None, :]
    frequency = tl.load(frequencies + pair, mask=pair < HALF, other=0.0)
    angle = tl.load(positions + token).to(tl.float32) * frequency
    cos, sin = tl.cos(angle) * factor, tl.sin(angle) * factor
    turn_both(q, q_out, k, k_out, token, cos, sin, HALF, TAIL, INTERLEAVED, HEADS)


class _Plan:
    def __init__(self, problem: Any, frequencies: Frequencies) -> None:
        self._rotation = Rotation(problem)
        self._frequencies = frequencies

    def run(self, q: Tensor, k: Tensor, positions: Tensor, q_out: Tensor, k_out: Tensor) -> None:
        angles = positions, self._frequencies.table(), self._frequencies.factor
        self._rotation.run(_apply_rope, q, k, q_out, k_out, *angles)


class _ApplyRope:
    def __init__(self) -> None:
        self._known = KnownFrequencies()

    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem, self._known.of(problem.rope, problem.rotary_dim, problem.device))


apply_rope = _ApplyRope()
