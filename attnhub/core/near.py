"""Near names: what somebody may have meant by a word that is not known here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: What people call dtypes, and the names they have here; for messages only, never accepted.
_SHORT: dict[str, tuple[str, ...]] = {
    "half": ("float16",),
    "fp16": ("float16",),
    "f16": ("float16",),
    "bf16": ("bfloat16",),
    "float": ("float32",),
    "fp32": ("float32",),
    "f32": ("float32",),
    "double": ("float64",),
    "fp64": ("float64",),
    "f64": ("float64",),
    "fp8": ("float8_e4m3fn", "float8_e5m2"),
    "float8": ("float8_e4m3fn", "float8_e5m2"),
    "fp8_e4m3": ("float8_e4m3fn",),
    "e4m3": ("float8_e4m3fn",),
    "float8_e4m3": ("float8_e4m3fn",),
    "fp8_e5m2": ("float8_e5m2",),
    "e5m2": ("float8_e5m2",),
}


def near(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The members of ``known`` that ``given`` may stand for, the likeliest first."""
    if not isinstance(given, str):
        return []
    known = list(known)
    short = [name for name in _SHORT.get(given.lower(), ()) if name in known]
    return short or difflib.get_close_matches(given, known, n=1, cutoff=cutoff)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """``"; did you mean 'float16'"``, or ``""`` where nothing is near."""
    found = near(given, known)
    return f"; did you mean {' or '.join(map(repr, found))}" if found else ""
