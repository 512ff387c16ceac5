"""Constraints: sets of accepted values, of which capability sheets and contracts are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from attnhub.core.problem import Problem, show


class Constraint(Protocol):
    """A set of accepted values for one field."""

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is in the set."""
        ...

    def nearest(self, value: Any) -> Any:
        """The member closest to ``value``, for a hint."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """Exactly these values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def accepts(self, value: Any) -> bool:
        return value in self.values

    def nearest(self, value: Any) -> Any:
        numbers = [v for v in self.values if isinstance(v, int) and not isinstance(v, bool)]
        if numbers and isinstance(value, int):
            larger = [v for v in numbers if v >= value]
            return min(larger) if larger else max(numbers)
        return self.values[0]

    def __str__(self) -> str:
        return " or ".join(map(show, self.values))


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; None is open."""

    low: float | None = None
    high: float | None = None

    def accepts(self, value: Any) -> bool:
        if value is None or isinstance(value, str):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def nearest(self, value: Any) -> Any:
        if self.low is not None and (value is None or value < self.low):
            return self.low
        return self.high

    def __str__(self) -> str:
        if self.low is None:
            return f"<= {self.high}"
        return f">= {self.low}" if self.high is None else f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """Positive multiples of ``step``, at most ``high``."""

    step: int
    high: int | None = None

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, int) or value <= 0 or value % self.step:
            return False
        return self.high is None or value <= self.high

    def nearest(self, value: Any) -> Any:
        up = -(-max(value or 1, 1) // self.step) * self.step
        return up if self.high is None or up <= self.high else self.high

    def __str__(self) -> str:
        return f"a multiple of {self.step}" + (f" up to {self.high}" if self.high else "")


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Every value."""

    def accepts(self, value: Any) -> bool:
        return True

    def nearest(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return "anything"


@dataclass(frozen=True, slots=True, init=False)
class Subset:
    """Sets of features none of which lies outside ``members``."""

    members: frozenset[str]

    def __init__(self, *members: str) -> None:
        object.__setattr__(self, "members", frozenset(members))

    def accepts(self, value: Any) -> bool:
        return value <= self.members

    def nearest(self, value: Any) -> Any:
        return value & self.members

    def __str__(self) -> str:
        return "only " + (", ".join(sorted(self.members)) or "none")


@dataclass(frozen=True, slots=True)
class SameAs:
    """The value that another field of the problem has."""

    field: str

    def bind(self, problem: Problem) -> OneOf:
        """The constraint for one problem."""
        return OneOf(getattr(problem, self.field))

    def accepts(self, value: Any) -> bool:
        return True  # nothing can be said of a value alone

    def nearest(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return f"the same as {self.field}"
