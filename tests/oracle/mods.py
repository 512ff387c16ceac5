"""User mods by name, written with arithmetic only, so that they take numbers and tensors alike.

`h` is a query head, except in a key mod, where it is a kv head.
"""

from __future__ import annotations

from typing import Any

from .attention import ElementMod, MaskMod, ScoreMod


def _distance(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score - 0.25 * (h + 1) * (q_idx - kv_idx)


def _square(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 0.5 * score * score + 0.125 * b


def _stripes(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx - kv_idx + h) % 3 != 1


def _prefix_or_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx < b + 2) | (kv_idx <= q_idx)


def _shrink_by_head(x: Any, b: Any, h: Any, idx: Any) -> Any:
    return x / (h + 1.0)


def _ramp(x: Any, b: Any, h: Any, idx: Any) -> Any:
    return x * (1.0 + 0.125 * idx) - 0.25 * b


def _scale_by_row(x: Any, b: Any, h: Any, idx: Any) -> Any:
    return x * (1.0 + 0.5 * b + 0.25 * h - 0.125 * idx)


SCORE_MODS: dict[str, ScoreMod] = {"distance": _distance, "square": _square}
MASK_MODS: dict[str, MaskMod] = {"stripes": _stripes, "prefix_or_causal": _prefix_or_causal}
QUERY_MODS: dict[str, ElementMod] = {"shrink_by_head": _shrink_by_head, "ramp": _ramp}
KEY_MODS: dict[str, ElementMod] = {"shrink_by_head": _shrink_by_head, "ramp": _ramp}
# Output mods here keep 0 at 0, so a row that sees no key tests the same with and without one.
OUTPUT_MODS: dict[str, ElementMod] = {
    "shrink_by_head": _shrink_by_head,
    "scale_by_row": _scale_by_row,
}
