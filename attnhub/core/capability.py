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
from typing import Any, NamedTuple

from attnhub.core.constraints import AnyValue, Constraint, OneOf, SameAs, Subset
from attnhub.core.near import did_you_mean
from attnhub.core.problem import Problem, fact_fields, fact_texts, show
from attnhub.core.reason import Code, Reason

_ANY = AnyValue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A need over several fields: where every ``when`` holds, every ``then`` must."""

    when: Mapping[str, Constraint]
    then: Mapping[str, Constraint]
    why: str

    def unmet(self, problem: Problem) -> Iterable[tuple[str, Constraint]]:
        if not _concerns(self, problem):
            return ()
        then = [(n, _bound(c, problem)) for n, c in self.then.items()]
        return [(n, c) for n, c in then if not c.accepts(getattr(problem, n))]


class _Need(NamedTuple):
    """An unmet need; no constraint is the field's default, no rule is the sheet itself."""

    name: str
    constraint: Constraint | None
    rule: Rule | None = None


#: How to read the fields to look at; what to hold them against; fields that depend on others.
_Rows = tuple[
    Callable[[Problem], tuple[Any, ...]], list[tuple[str, "Constraint | None", Any]], set[str]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What one backend (or one of its alternatives) takes; see the module docstring.

    ``sm`` applies to CUDA devices only. ``complete`` turns the default round: a field that is not
    mentioned may have any value (for references, which serve every feature there is).
    """

    accepts: Mapping[str, Constraint] = field(default_factory=dict)
    complete: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    sm: Constraint = _ANY
    rules: tuple[Rule, ...] = ()
    _cache: dict[type[Problem], _Rows] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def reasons(self, problem: Problem) -> tuple[Reason, ...]:
        """Every unmet need; empty when the problem fits."""
        found = self._device_reasons(problem)
        if not (needs := self._unmet(problem)):
            return tuple(found)
        fields = fact_fields(type(problem))
        # On another device nothing fits, whatever changes, and most fields depend on no other: what
        # is near each need is enough.
        tied = self._cache[type(problem)][2]
        alone = found or tied.isdisjoint([need.name for need in needs])
        remedy = _nearest(problem, needs, fields) if alone else self._remedy(problem, needs)
        for need in needs:
            found += _reasons(need, getattr(problem, need.name), fields[need.name].default, remedy)
        return tuple(found)

    def _unmet(self, problem: Problem) -> list[_Need]:
        found = []
        values, rows, _ = self._rows(type(problem))
        for value, (name, constraint, default) in zip(values(problem)[2:], rows, strict=True):
            if value is default:  # also where the field does not apply: both are None
                if constraint is None or default is None:
                    continue
            elif constraint is None:
                if value != default:
                    found.append(_Need(name, None))
                continue
            if isinstance(constraint, SameAs):  # the one that depends on the rest of the problem
                constraint = constraint.bind(problem)  # noqa: PLW2901
            if not constraint.accepts(value):
                found.append(_Need(name, constraint))
        for rule in self.rules:
            for name, constraint in rule.unmet(problem):
                found.append(_Need(name, constraint, rule))
        return found

    def _remedy(self, problem: Problem, needs: list[_Need]) -> Mapping[str, Any]:
        """Values of the fields in need with which all of the sheet fits; empty if none is found."""
        fields, changed = fact_fields(type(problem)), dict[str, Any]()
        at: Any = _Changed(problem, changed)
        for name in dict.fromkeys(need.name for need in needs):
            field = fields[name]
            if field.metadata["structural"]:  # of another kind, nothing applies that has None
                changed |= {n: None for n, f in fields.items() if f.default is None}
            wanted = [_bound(self.accepts[name], at)] if name in self.accepts else []
            rules = (r for r in self.rules if name in r.then and _concerns(r, at))
            wanted += [_bound(rule.then[name], at) for rule in rules]
            if not wanted:
                if not self.complete:  # else it was a rule's need, which is gone by now
                    changed[name] = field.default
                continue
            value = getattr(problem, name)
            near = [_closest(c, value) for c in wanted]
            nearer = [_closest(c, x) for c in wanted for x in near if len(wanted) > 1]
            for x in (*near, *nearer, *field.metadata["domain"]):
                if all(c.accepts(x) for c in wanted):
                    changed[name] = x
                    break
            else:
                return {}
        for name, constraint in self.accepts.items():
            if isinstance(constraint, SameAs) and getattr(at, name) != getattr(
                at, constraint.field
            ):
                return {}
        return {} if any(rule.unmet(at) for rule in self.rules) else changed

    def _rows(self, cls: type[Problem]) -> _Rows:
        """The fields to look at and what to hold them against, put together once per class."""
        if cls not in self._cache:
            fields = fact_fields(cls)
            free = {n for n, c in self.accepts.items() if isinstance(c, AnyValue)}
            asked = self.accepts if self.complete else fields
            names = [n for n in fields if n in asked and n not in free]
            rows = [(n, self.accepts.get(n), fields[n].default) for n in names]
            # Two names more than needed, so that it gives a tuple whatever there is.
            values = operator.attrgetter("op", "op", *names)
            tied = {n for rule in self.rules for n in (*rule.when, *rule.then)}
            tied |= {n for name, c in _same(self) for n in (name, c.field)}
            self._cache[cls] = (values, rows, tied)
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
        known = [(n, c, fields[n]) for n, c in pairs if n in fields]
        faults += [f for each in known if (f := _misfit(*each) or _unheard_of(*each))]
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


def _same(sheet: Capability) -> list[tuple[str, SameAs]]:
    """The fields that must have the value of another, with or without a rule."""
    pairs = [*sheet.accepts.items()]
    pairs += [pair for r in sheet.rules for pair in (*r.when.items(), *r.then.items())]
    return [(n, c) for n, c in pairs if isinstance(c, SameAs)]


def _closest(constraint: Constraint, value: Any) -> Any:
    return value if constraint.accepts(value) else constraint.nearest(value)


class _Changed:
    """A problem some fields of which have other values: far cheaper than a copy of it."""

    def __init__(self, problem: Problem, changed: Mapping[str, Any]) -> None:
        self._problem, self._changed = problem, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._problem, name)


def _nearest(
    problem: Problem, needs: Iterable[_Need], fields: Mapping[str, dataclasses.Field[Any]]
) -> Mapping[str, Any]:
    """For each need alone the value that meets it."""
    return {
        name: fields[name].default if c is None else c.nearest(getattr(problem, name))
        for name, c, _ in needs
    }


def _concerns(rule: Rule, problem: Problem) -> bool:
    """Whether a rule has anything to ask."""
    for name, constraint in rule.when.items():  # a loop, since every cold decision comes by here
        if not _bound(constraint, problem).accepts(getattr(problem, name)):
            return False
    return True


def _bound(constraint: Constraint, problem: Problem) -> Constraint:
    return constraint.bind(problem) if isinstance(constraint, SameAs) else constraint


def _unheard_of(name: str, constraint: Constraint, field: dataclasses.Field[Any]) -> str:
    """Which text a constraint names that no problem's field ever has, or ``""``."""
    texts = fact_texts(field)
    named: Iterable[Any] = constraint.values if isinstance(constraint, OneOf) else ()
    named = constraint.members if isinstance(constraint, Subset) else named
    wrong = sorted(x for x in named if isinstance(x, str) and x not in texts) if texts else []
    return f"{name} has no value {wrong[0]!r}{did_you_mean(wrong[0], texts)}" if wrong else ""


def _reasons(need: _Need, value: Any, default: Any, remedy: Mapping[str, Any]) -> Iterable[Reason]:
    """The reasons that tell of a need; one a feature, so that each is seen by name."""
    name, constraint, rule = need
    if constraint is None:
        yield _unsupported(name, value, default, can_help=name in remedy)
    elif rule is None and isinstance(constraint, Subset):
        for feature in sorted(value - constraint.members):
            yield _unsupported(feature, "used", None, can_help=name in remedy)
    else:
        yield Reason(
            code=Code.FIELD if rule is None else Code.RULE,
            field=name,
            actual=show(value),
            accepted=str(constraint) if rule is None else f"{constraint}: {rule.why}",
            hint=f"fits if {name} is {show(remedy[name])}" if name in remedy else "",
        )


def _unsupported(name: str, value: Any, default: Any, *, can_help: bool) -> Reason:
    absent = default is None or default is False or default in ("none", frozenset())
    without = "none" if absent else show(default)
    hint = f"fits without {name}" if absent else f"fits if {name} is {without}"
    return Reason(
        code=Code.FIELD,
        field=name,
        actual=show(value),
        accepted=f"{without} (not supported here)",
        hint=hint if can_help else "",
    )
