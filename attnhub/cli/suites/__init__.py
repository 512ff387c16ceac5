"""The benchmark suites: ``overhead``, ``jit``, ``schedule``, and one for each op.

Those of ops come from the workloads of their families.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnhub.cli import output
from attnhub.cli.suites import jit, overhead, schedule, workloads
from attnhub.cli.suites.ceiling import Ceiling
from attnhub.cli.suites.workloads import Settings
from attnhub.core import discovery
from attnhub.errors import AttnHubError, DispatchError, PluginError, UnknownName
from attnhub.testing import results
from attnhub.testing.results import Row

__all__ = [
    "OVERHEAD",
    "Outcome",
    "Settings",
    "check_backends",
    "check_tag",
    "contents",
    "matching",
    "names",
    "run",
]

OVERHEAD = "overhead"
_ANY = "any"  # what the workloads of a suite without tags are listed under


@dataclass(slots=True)
class Outcome:
    """Measured rows, and what was left out or went wrong, by name."""

    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Take in another outcome."""
        self.rows += other.rows
        self.skipped |= other.skipped
        self.failed |= other.failed


def names() -> list[str]:
    """Every suite."""
    return [OVERHEAD, jit.SUITE, schedule.SUITE, *sorted(discovery.default().ops)]


def matching(patterns: Sequence[str]) -> list[str]:
    """The suites that match any of the globs, in the order of :func:`names`.

    Raises:
        UnknownName: a glob that matches none.
    """
    known = names()
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise UnknownName("suite", pattern, known)
    return [name for name in known if any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def check_backends(backends: Sequence[str], suites: Sequence[str]) -> None:
    """Refuse names that are a backend of none of these suites' ops.

    Raises:
        UnknownName: one such name.
    """
    registry = discovery.default()
    known = {backend.name for suite in suites for backend in registry.backends(suite)}
    owner = suites[0] if len(suites) == 1 else "these suites"
    for name in backends:
        if name not in known:
            raise UnknownName(f"backend of {owner}", name, known)


def check_tag(tag: str) -> None:
    """Refuse a tag that no workload of any op has; an empty one stands for the default.

    Raises:
        UnknownName: the tag is not known.
    """
    known = {name for entry in contents() for name in entry["workloads"]} - {_ANY} if tag else {""}
    if tag not in known:
        raise UnknownName("workload tag", tag, known)


def contents() -> list[dict[str, Any]]:
    """What ``attnhub bench list`` shows: each suite's workloads by tag, or why it has none."""
    ops = discovery.default().ops
    found: list[dict[str, Any]] = [
        {
            "suite": OVERHEAD,
            "about": "what dispatch and run cost on the host, by share of the budget",
            "workloads": {_ANY: len(overhead.BUDGETS)},
            "missing": "",
        },
        {
            "suite": jit.SUITE,
            "about": "what compiling kernels costs, and the first call of one",
            "workloads": {_ANY: len(jit.MODELS)},
            "missing": "",
        },
        {
            "suite": schedule.SUITE,
            "about": "what planning a batch costs, on the device and on the host",
            "workloads": {_ANY: len(schedule.CASES)},
            "missing": "",
        },
    ]
    for name in sorted(ops):
        try:
            cases, missing = workloads.find(ops[name])
        except PluginError as error:
            cases, missing = (), str(error)
        tags = Counter(tag for case in cases for tag in sorted(case.tags))
        about = ops[name].summary
        found.append({"suite": name, "about": about, "workloads": dict(tags), "missing": missing})
    return found


def run(suites: Sequence[str], settings: Settings) -> Iterator[Outcome]:
    """Run suites one after the other; a failure ends its workload, not the run."""
    here = results.environment(settings.device, commit=settings.commit)
    ceiling = Ceiling(settings.device)
    for name in suites:
        output.note(f"measuring {name}")
        with output.quiet():
            if name == OVERHEAD:
                outcome = _run_overhead(settings, here)
            elif name == jit.SUITE:
                outcome = _run_jit(settings, here)
            elif name == schedule.SUITE:
                outcome = _run_schedule(settings, here)
            else:
                outcome = _run_op(name, settings, here, ceiling)
        yield outcome


def _run_overhead(settings: Settings, here: results.Environment) -> Outcome:
    try:
        return Outcome(rows=overhead.rows(here, settings.device))
    except AttnHubError as error:  # a plugin that does not import, an override without a stub
        return Outcome(failed={OVERHEAD: str(error)})


def _run_jit(settings: Settings, here: results.Environment) -> Outcome:
    try:
        found = jit.measure(here, settings.device)
    except AttnHubError as error:  # no compiler, or a call that fails
        return Outcome(failed={jit.SUITE: str(error)})
    return Outcome(rows=found.rows, skipped=found.skipped, failed=found.failed)


def _run_schedule(settings: Settings, here: results.Environment) -> Outcome:
    if settings.device == "cpu":
        return Outcome(skipped={schedule.SUITE: "it needs a GPU"})
    try:
        return Outcome(rows=schedule.rows(here, settings.device))
    except AttnHubError as error:  # no compiler, or a driver that fails
        return Outcome(failed={schedule.SUITE: str(error)})


def _run_op(name: str, settings: Settings, here: results.Environment, ceiling: Ceiling) -> Outcome:
    try:
        found, missing = workloads.find(discovery.default().op(name))
    except PluginError as error:
        return Outcome(failed={name: str(error)})
    cases = [case for case in found if settings.tag in case.tags]
    if not cases:
        return Outcome(skipped={name: missing or f"no workload is tagged {settings.tag!r}"})
    outcome = Outcome()
    for case in cases:
        label = f"{name} {case.name}"
        try:
            outcome.rows += workloads.rows(name, case, settings, here, ceiling)
        except DispatchError as error:
            outcome.skipped[label] = str(error).partition("\n")[0]
        except Exception as error:  # noqa: BLE001 - what a kernel may do is not known here
            outcome.failed[label] = f"{type(error).__name__}: {error}"
    return outcome
