"""Which problems a backend's capability sheets speak of: declared corners, undeclared neighbours.

A *corner* is a problem that a sheet accepts and that holds a value worth testing: one value at a
time round a base problem, then pairs of them. A *neighbour* is a problem with one value that no
sheet accepts. Values come from the ``domain`` of each problem field and from the sheets themselves.
Companions of a value (a page size once the cache is paged) are found by search: what the op's
adapter or the sheet complains of is changed, fewest complaints first.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from attnhub.errors import AttnHubError
from attnhub.plugin import (
    Backend,
    Capability,
    Constraint,
    Device,
    MultipleOf,
    OneOf,
    Problem,
    Range,
)

Facts = dict[str, Any]

#: Problems looked at before a value counts as out of reach.
_EFFORT = 600
#: A bound of a sheet that is this many times a domain's largest value is no size to test with.
_FAR = 4


class Shape(Protocol):
    """What the search needs to know of an op."""

    @property
    def base(self) -> Mapping[str, Any]:
        """Preferred facts; every other field starts at its default, else its first value."""
        ...

    def clashes(self, facts: Mapping[str, Any], device: Device) -> set[str]:
        """Fields whose values no call can have together there; empty for facts of a real call."""
        ...

    def problem(self, cls: type[Problem], device: Device, facts: Mapping[str, Any]) -> Problem:
        """The problem that a call with these facts would be dispatched by."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """A problem, and the values it is there for. Without a problem, ``why`` says what stood in."""

    pinned: Mapping[str, Any]
    problem: Problem | None
    why: str = ""

    def __str__(self) -> str:
        return ",".join(f"{name}={text(value)}" for name, value in self.pinned.items()) or "base"


def text(value: Any) -> str:
    """A fact's value for a test id: ``causal+window``, ``16x16``, ``64``."""
    if isinstance(value, frozenset):
        return "+".join(sorted(map(str, value))) or "none"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Corners and neighbours of one backend on one device, real or simulated."""

    backend: Backend
    cls: type[Problem]
    shape: Shape
    device: Device

    @cached_property
    def fields(self) -> Mapping[str, dataclasses.Field[Any]]:
        """The fields that capabilities speak about."""
        return {f.name: f for f in dataclasses.fields(self.cls) if "domain" in f.metadata}

    @cached_property
    def sheets(self) -> Sequence[Capability]:
        """The sheets that apply to this device."""
        return [s for s in self.backend.sheets() if applies(s, self.device)]

    @cached_property
    def values(self) -> Mapping[str, Sequence[Any]]:
        """Of each field: the domain, then what the sheets name beyond it."""
        found = {}
        for name, f in self.fields.items():
            domain = f.metadata["domain"]
            named = [v for s in self.sheets for v in _named(s.accepts.get(name), domain)]
            found[name] = tuple(dict.fromkeys([*domain, *named]))
        return found

    @cached_property
    def base(self) -> Corner:
        """The problem that every corner starts from."""
        return self._corner({}, self._start)

    def declared(self) -> Iterator[Corner]:
        """The base, then each declared value that it does not hold itself."""
        yield self.base
        if self.base.problem is None:
            return
        seen = {self.base.problem}
        for name, value in self._single_values():
            corner = self._corner({name: value}, self._facts(self.base.problem))
            if corner.problem is None:
                if self._exists(corner.pinned) is not None:
                    yield corner
            elif corner.problem not in seen:
                seen.add(corner.problem)
                yield corner

    def pairs(self, count: int, seed: int) -> Iterator[Corner]:
        """Up to ``count`` corners with two declared values each, drawn by ``seed``."""
        single = [c for c in self.declared() if c.pinned and c.problem is not None]
        seen = {c.problem for c in single} | {self.base.problem}
        combinations = list(itertools.combinations(single, 2))
        random.Random(seed).shuffle(combinations)
        for first, second in itertools.islice(combinations, 4 * count):
            pinned = _united(first.pinned, second.pinned)
            if pinned is None or count <= 0 or first.problem is None:
                continue
            corner = self._corner(pinned, self._facts(first.problem))
            if corner.problem is not None and corner.problem not in seen:
                seen.add(corner.problem)
                count -= 1
                yield corner

    def refused(self) -> Iterator[Corner]:
        """Each value that no sheet accepts, in a call that exists."""
        for name, value in self._field_values():
            if not any(self._accepts(sheet, name, value) for sheet in self.sheets):
                problem = self._exists({name: value})
                if problem is not None:
                    yield Corner(pinned={name: value}, problem=problem)

    # -- inside ----------------------------------------------------------------------------

    @cached_property
    def _start(self) -> Facts:
        facts = {}
        for name, f in self.fields.items():
            missing = f.default is dataclasses.MISSING
            facts[name] = f.metadata["domain"][0] if missing else f.default
        return facts | {n: v for n, v in self.shape.base.items() if n in facts}

    def _facts(self, problem: Problem) -> Facts:
        return {name: getattr(problem, name) for name in self.fields}

    def _field_values(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, values in self.values.items() for value in values)

    def _single_values(self) -> Iterator[tuple[str, Any]]:
        for name, value in self._field_values():
            held = self.base.problem is not None and getattr(self.base.problem, name) == value
            if not held and any(self._accepts(sheet, name, value) for sheet in self.sheets):
                yield name, value

    def _accepts(self, sheet: Capability, name: str, value: Any) -> bool:
        constraint = sheet.accepts.get(name)
        if constraint is None:
            return sheet.complete or value == self.fields[name].default
        return constraint.accepts(value)

    def _exists(self, pinned: Mapping[str, Any]) -> Problem | None:
        """The nearest real call with these values, whether or not a sheet accepts it."""
        start = self._start if self.base.problem is None else self._facts(self.base.problem)
        return self._search({**start, **pinned}, set(pinned), None)[0]

    def _corner(self, pinned: Mapping[str, Any], start: Facts) -> Corner:
        why = "no sheet applies to this device"
        for sheet in self.sheets:
            problem, why = self._search({**start, **pinned}, set(pinned), sheet)
            if problem is not None:
                return Corner(pinned=pinned, problem=problem)
        return Corner(pinned=pinned, problem=None, why=why)

    def _search(
        self, start: Facts, pinned: set[str], sheet: Capability | None
    ) -> tuple[Problem | None, str]:
        """Change what is complained of until nothing is; else None and the last complaint."""
        order = itertools.count()
        queue: list[tuple[int, int, int, Facts]] = [(0, 0, next(order), start)]
        seen = {tuple(start.values())}
        nearest, why = len(self.fields), "no call has these values"
        for _ in range(_EFFORT):
            if not queue:
                break
            _, changes, _, facts = heapq.heappop(queue)
            problem, blamed, complaint = self._blame(facts, sheet)
            if not blamed:
                return problem, ""
            if problem is not None and len(blamed) < nearest:
                nearest, why = len(blamed), complaint
            for name in sorted((blamed - pinned) & self.fields.keys()):
                for value in self._alternatives(name):
                    facts_next = {**facts, name: value}
                    if tuple(facts_next.values()) not in seen:
                        seen.add(tuple(facts_next.values()))
                        rank = (len(blamed) + changes, changes + 1, next(order), facts_next)
                        heapq.heappush(queue, rank)
        return None, why

    def _alternatives(self, name: str) -> Sequence[Any]:
        default = self.fields[name].default
        return [*self.values[name], *([] if default is dataclasses.MISSING else [default])]

    def _blame(
        self, facts: Facts, sheet: Capability | None
    ) -> tuple[Problem | None, set[str], str]:
        """The problem, the fields that must change, and the first complaint in words."""
        clashes = self.shape.clashes(facts, self.device)
        if clashes:
            return None, clashes, ""
        try:
            problem = self.shape.problem(self.cls, self.device, facts)
        except AttnHubError as error:  # the problem class knows that they do not fit together
            return None, set(self.fields), str(error)
        if sheet is None:
            return problem, set(), ""
        reasons = sheet.reasons(problem)
        blamed = {field_of(reason.field, facts) for reason in reasons}
        for rule in sheet.rules:
            if rule.unmet(problem):
                blamed |= {*rule.when, *rule.then}
        return problem, blamed, "; ".join(map(str, reasons))


def applies(sheet: Capability, device: Device) -> bool:
    """Whether a sheet speaks of this device at all."""
    return device.type in sheet.devices and (device.sm is None or sheet.sm.accepts(device.sm))


def field_of(named: str, facts: Mapping[str, Any]) -> str:
    """The field that a reason names: itself, or the set of features that holds the name."""
    if named in facts:
        return named
    return next((n for n, v in facts.items() if isinstance(v, frozenset) and named in v), named)


def _named(constraint: Constraint | None, domain: Sequence[Any]) -> list[Any]:
    """Values that a constraint names itself: the members of a list, the ends of a range."""
    if isinstance(constraint, OneOf):
        return list(constraint.values)
    if isinstance(constraint, MultipleOf):
        ends: list[Any] = [constraint.step, constraint.high]
    elif isinstance(constraint, Range):
        ends = [constraint.low, constraint.high]
    else:
        return []
    numbers = [v for v in domain if isinstance(v, int) and not isinstance(v, bool)]
    largest = _FAR * max(numbers, default=0)
    return [end for end in ends if isinstance(end, int) and 0 < end <= largest]


def _united(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
    """Both pins; features of both are used together, other values of one field exclude another."""
    united = {**first, **second}
    for name in first.keys() & second.keys():
        if not isinstance(first[name], frozenset):
            return None
        united[name] = first[name] | second[name]
    return united
