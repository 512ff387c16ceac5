"""Capability: what a backend supports, as data.

Example::

    Capability(
        devices=("cuda",), sm=Range(80, None),
        accepts={"kv_dtype": OneOf("float16", "bfloat16"), "page_size": MultipleOf(16), ...},
        rules=(Rule(when={"kv": OneOf("paged")}, then={"layout": OneOf("NHD")}, why="..."),),
    )

A problem field that ``accepts`` does not mention must have its default (the feature is absent).
A default of None means that the field does not apply (the page size of ragged K/V): always fine.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnhub.core.problem import Problem, fact_fields, show
from attnhub.core.reason import Code, Reason


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A need over several fields: where every ``when`` holds, every ``then`` must."""

    when: Mapping[str, Constraint]
    then: Mapping[str, Constraint]
    why: str

    def unmet(self, problem: Problem) -> Iterable[tuple[str, Constraint]]:
        for name, constraint in self.when.items():
            if not _bound(constraint, problem).accepts(getattr(problem, name)):
                return ()
        then = [(n, _bound(c, problem)) for n, c in self.then.items()]
        return [(n, c) for n, c in then if not c.accepts(getattr(problem, n))]


_Rows = tuple[Callable[[Problem], tuple[Any, ...]], list[tuple[str, "Constraint | None", Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What one backend (or one of its alternatives) takes; see the module docstring.

    ``sm`` applies to CUDA devices only. ``complete`` turns the default round: a field that is not
    mentioned may have any value (for references, which serve every feature there is).
    """

    accepts: Mapping[str, Constraint] = field(default_factory=dict)
    complete: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    sm: Constraint = AnyValue()
    rules: tuple[Rule, ...] = ()
    _cache: dict[type[Problem], _Rows] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def reasons(self, problem: Problem) -> tuple[Reason, ...]:
        """Every unmet need; empty when the problem fits."""
        found = self._device_reasons(problem)
        values, rows = self._rows(type(problem))
        for value, (name, constraint, default) in zip(values(problem)[2:], rows, strict=True):
            if value is default:  # also where the field does not apply: both are None
                if constraint is None or default is None:
                    continue
            elif constraint is None:
                if value != default:
                    found.append(_unsupported(name, value, default))
                continue
            if isinstance(constraint, SameAs):  # the one that depends on the rest of the problem
                constraint = constraint.bind(problem)  # noqa: PLW2901
            if not constraint.accepts(value):
                found.extend(_outside(name, value, constraint))
        for rule in self.rules:
            for name, constraint in rule.unmet(problem):
                found.append(_by_rule(rule, name, getattr(problem, name), constraint))
        return tuple(found)

    def _rows(self, cls: type[Problem]) -> _Rows:
        """The fields to look at and what to hold them against, put together once per class."""
        if cls not in self._cache:
            fields = fact_fields(cls)
            names = [n for n in fields if n in self.accepts or not self.complete]
            rows = [(n, self.accepts.get(n), fields[n].default) for n in names]
            # Two names more than needed, so that it gives a tuple whatever there is.
            values = operator.attrgetter("op", "op", *names)
            self._cache[cls] = (values, rows)
        return self._cache[cls]

    def _device_reasons(self, problem: Problem) -> list[Reason]:
        device = problem.device
        if device.type not in self.devices:
            accepted = " or ".join(self.devices)
            return [Reason(code=Code.DEVICE, field="device", actual=device.type, accepted=accepted)]
        if device.sm is not None and not self.sm.accepts(device.sm):
            return [
                Reason(code=Code.DEVICE, field="sm", actual=str(device.sm), accepted=str(self.sm))
            ]
        return []

    def faults(self, cls: type[Problem]) -> list[str]:
        """What is wrong with this sheet for problems of ``cls``.

        It names fields that there are not, leaves a required one out, or holds a constraint that
        cannot judge the values of its field (a Subset of a plain text).
        """
        fields = fact_fields(cls)
        pairs = [*self.accepts.items()]
        pairs += [pair for r in self.rules for pair in (*r.when.items(), *r.then.items())]
        named = {n for n, _ in pairs} | {c.field for _, c in pairs if isinstance(c, SameAs)}
        faults = [f"no field {n!r} in {cls.__name__}" for n in sorted(named - set(fields))]
        faults += [f for n, c in pairs if n in fields and (f := _misfit(n, c, fields[n]))]
        if self.complete:
            return faults
        required = [n for n, f in fields.items() if f.default is dataclasses.MISSING]
        faults += [f"field {n!r} must be mentioned" for n in required if n not in self.accepts]
        return faults


def _misfit(name: str, constraint: Constraint, field: dataclasses.Field[Any]) -> str:
    """Why a constraint cannot judge the values that its field has, or ``""``."""
    values = [*field.metadata["domain"]]
    values += [] if field.default in (dataclasses.MISSING, None) else [field.default]
    for value in values:
        try:
            constraint.accepts(value)
            constraint.nearest(value)
        except Exception as error:  # noqa: BLE001 - it may be a plugin's own class
            kind = type(constraint).__name__
            return f"{name}: {kind} cannot judge {value!r} ({type(error).__name__}: {error})"
    return ""


def _bound(constraint: Constraint, problem: Problem) -> Constraint:
    return constraint.bind(problem) if isinstance(constraint, SameAs) else constraint


def _unsupported(name: str, value: Any, default: Any) -> Reason:
    without = "none" if default in (None, False) else show(default)
    return Reason(
        code=Code.FIELD,
        field=name,
        actual=show(value),
        accepted=f"{without} (not supported here)",
        hint=f"fits without {name}",
    )


def _outside(name: str, value: Any, constraint: Constraint) -> list[Reason]:
    if isinstance(constraint, Subset):
        # One reason a feature, so that a reader and a program see each by name.
        return [_unsupported(f, "used", None) for f in sorted(value - constraint.members)]
    nearest = constraint.nearest(value)
    return [
        Reason(
            code=Code.FIELD,
            field=name,
            actual=show(value),
            accepted=str(constraint),
            hint=f"fits if {name} is {show(nearest)}",
        )
    ]


def _by_rule(rule: Rule, name: str, value: Any, constraint: Constraint) -> Reason:
    nearest = constraint.nearest(value)
    return Reason(
        code=Code.RULE,
        field=name,
        actual=show(value),
        accepted=f"{constraint}: {rule.why}",
        hint=f"fits if {name} is {show(nearest)}",
    )
