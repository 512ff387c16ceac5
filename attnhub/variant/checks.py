"""Checks of single values, shared by the specs of this package; each returns the value to store."""

from __future__ import annotations

import math

from attnhub.errors import InvalidArgument


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is a bool; an int is refused, because 1 for True hides mistakes."""
    if not isinstance(value, bool):
        raise InvalidArgument(
            f"{name}={value!r} is of type {type(value).__name__}; give True or False"
        )
    return value


def check_int(name: str, value: object, *, minimum: int) -> int:
    """Return `value` if it is an int of at least `minimum` (a bool is not an int here)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(
            f"{name}={value!r} is of type {type(value).__name__}; give an int >= {minimum}"
        )
    if value < minimum:
        raise InvalidArgument(f"{name}={value} is too small; give an int >= {minimum}")
    return value


def check_positive(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number above zero (a bool is not a number)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(
            f"{name}={value!r} is of type {type(value).__name__}; give a finite number > 0"
        )
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgument(f"{name}={value!r} is out of range; give a finite number > 0")
    return float(value)
