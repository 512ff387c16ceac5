"""Dispatcher: from a problem to a decision, and from a decision to a plan.

Order of work: overrides -> capabilities (all reasons of all backends) -> probes of survivors ->
ranking by measured profile, else cost model -> decision. Decisions are cached by problem, override
scope and registry generation; a hit is one dictionary look-up without a lock.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet

from attnhub.core import discovery, options
from attnhub.core import profile as profiles
from attnhub.core.backend import Backend, Estimate, Plan, Planner, resolve
from attnhub.core.decision import Candidate, Decision, Rejection
from attnhub.core.env import environment
from attnhub.core.known_plugins import known_plugins
from attnhub.core.options import Override
from attnhub.core.problem import Problem, fact_fields
from attnhub.core.reason import Code, Reason
from attnhub.core.registry import Registry
from attnhub.errors import (
    AttnHubError,
    BackendUnsupported,
    NoBackend,
    PerformanceWarning,
    PluginError,
    UnknownName,
)

#: A blocked backend must look this many times faster before a warning is worth its noise.
WARN_RATIO = 2.0

_Rejected = dict[str, tuple[Backend, tuple[Reason, ...]]]


class Dispatcher:
    """Chooses among one registry's backends; :func:`default` is the shared one."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.rules: tuple[Override, ...] = ()
        self._decisions: dict[Any, Decision] = {}
        self._planners: dict[str, Planner] = {}
        self._announced: set[str] = set()
        self._warned: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    # -- deciding --------------------------------------------------------------------------

    def decide(self, problem: Problem, backend: str = "") -> Decision:
        """The decision for ``problem``; ``backend`` is the caller's own requirement, if any."""
        key = (problem, backend, options.scope.get(), self.registry.generation)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self._select(problem, backend)
        return decision

    def overrides(self, op: str, backend: str) -> list[Override]:
        """The rules that speak about ``op``, highest precedence first."""
        rules = [Override(backend=backend, op=op, scope="argument")] if backend else []
        rules += reversed(options.scope.get())
        rules += reversed(self.rules)
        rules += reversed(options.from_environment())
        serving = {b.name for b in self.registry.backends(op)}
        found = []
        for rule in rules:
            self.check_name(rule)
            # A rule for every op is about those its backend serves; one that names the op is not.
            if rule.matches(op) and (rule.op == op or rule.backend in serving):
                found.append(rule)
        return found

    def check_name(self, rule: Override) -> None:
        """Raise UnknownName for a backend nobody registered (with its install hint, if known)."""
        if rule.backend in self.registry.names():
            return
        plugin = known_plugins().get(rule.backend)
        hint = f"({rule.scope}; {plugin.install})" if plugin else f"({rule.scope})"
        known = [*self.registry.names(), *known_plugins()]
        raise UnknownName("backend", rule.backend, known, hint)

    def _select(self, problem: Problem, backend: str) -> Decision:
        rules = self.overrides(problem.op, backend)
        rejected: _Rejected = {}
        fitting: list[Backend] = []
        for candidate in self.registry.backends(problem.op):
            reasons = self._reasons(candidate, problem)
            if reasons:
                rejected[candidate.name] = (candidate, reasons)
            else:
                fitting.append(candidate)
        fitting, used = _apply(rules, fitting, rejected)
        fitting = self._probe(problem, fitting, rejected)
        ranked = sorted(
            ((self.estimate(b, problem), b) for b in fitting),
            key=lambda pair: (_us(pair[0]), -pair[1].priority, pair[1].name),
        )
        preferred = {r.backend for r in used[:1] if r.mode == "prefer"}
        ranked.sort(key=lambda pair: pair[1].name not in preferred)
        return self._decision(problem, ranked, rejected, rules, used)

    def _reasons(self, backend: Backend, problem: Problem) -> tuple[Reason, ...]:
        fault = self.registry.check(backend, type(problem))
        if fault:
            return (_reason(Code.IMPORT, "capability", fault, "a valid sheet"),)
        failed = self.registry.failed.get((backend.op, backend.name))
        if failed:
            return (_reason(Code.IMPORT, "plugin", failed, "one that loads and plans"),)
        return (*backend.reasons(problem), *_torch_reasons(backend))

    def _probe(
        self, problem: Problem, fitting: list[Backend], rejected: _Rejected
    ) -> list[Backend]:
        kept = []
        for backend in fitting:
            reasons: tuple[Reason, ...] = ()
            if backend.probe and not problem.device.simulated:
                try:
                    reasons = tuple(resolve(backend.probe, backend.plugin)(problem))
                except Exception as error:  # noqa: BLE001 - a probe that fails says: not here
                    reasons = (_reason(Code.PROBE, "probe", str(error), "a probe that runs"),)
                    self._report(backend, "probe", error)
            if reasons:
                rejected[backend.name] = (backend, reasons)
            else:
                kept.append(backend)
        return kept

    def estimate(self, backend: Backend, problem: Problem) -> Estimate:
        """Measured time if the profile has it, else the backend's cost model."""
        measured = profiles.load(environment().profile).estimate(backend.name, problem)
        if measured is not None:
            return measured
        try:
            return backend.cost(problem)
        except Exception as error:  # noqa: BLE001 - a broken cost model must not stop a call
            self._report(backend, "cost model", error)
            return Estimate(us=None, source="none", detail=f"cost model failed: {error}")

    def _report(self, backend: Backend, what: str, error: Exception) -> None:
        text = f"the {what} of backend {backend.name!r} failed: {type(error).__name__}: {error}"
        self.registry.report(backend.plugin or backend.name, text)

    def _decision(
        self,
        problem: Problem,
        ranked: list[tuple[Estimate, Backend]],
        rejected: _Rejected,
        rules: list[Override],
        used: list[Override],
    ) -> Decision:
        rows = [
            Rejection(
                name=name,
                plugin=b.plugin,
                reasons=reasons,
                estimate=self._if_possible(b, reasons, problem),
            )
            for name, (b, reasons) in rejected.items()
        ]
        known = [p for p in known_plugins().values() if p.serves(problem.op, problem.device)]
        installed = set(self.registry.names())
        rows += [
            Rejection(name=p.backend, plugin=p.package, reasons=(), install=p.install)
            for p in known
            if p.backend not in installed
        ]
        unlock = [f"{r.name} {r.unlock}" for r in rows if r.unlock]
        return Decision(
            op=problem.op,
            problem=str(problem).partition(": ")[2],
            device=str(problem.device),
            extent=problem.extent.text(problem.sizes),
            ranked=tuple(Candidate(name=b.name, plugin=b.plugin, estimate=e) for e, b in ranked),
            rejected=tuple(rows),
            overrides=tuple(_say(r, used, rejected) for r in rules),
            notes=tuple(f"would fit: {text}" for text in unlock),
        )

    def _if_possible(
        self, backend: Backend, reasons: tuple[Reason, ...], problem: Problem
    ) -> Estimate | None:
        """What a rejected backend would cost, unless this device can never run it."""
        if any(r.code is Code.DEVICE for r in reasons):
            return None
        return self.estimate(backend, problem)

    # -- planning --------------------------------------------------------------------------

    def plan(self, problem: Problem, backend: str = "") -> tuple[Plan, Decision]:
        """A plan by the best backend that loads and plans.

        Raises:
            BackendUnsupported: a required backend cannot serve this problem.
            NoBackend: none can.
        """
        while True:
            decision = self.decide(problem, backend)
            chosen = self._chosen(decision, problem, backend)
            try:
                plan = self._planner(chosen).plan(problem)
            except AttnHubError as error:
                if not isinstance(error, PluginError):
                    raise
                self.registry.mark_failed(chosen, error)
                continue
            except Exception as error:  # noqa: BLE001 - a plugin that crashes is set aside, loudly
                wrapped = PluginError(
                    chosen.plugin, f"plan() failed: {type(error).__name__}: {error}"
                )
                wrapped.__cause__ = error
                self.registry.mark_failed(chosen, wrapped)
                continue
            self._announce(decision, problem, backend)
            return plan, decision

    def _chosen(self, decision: Decision, problem: Problem, backend: str) -> Backend:
        if decision.chosen is not None:
            name = decision.chosen.name
            return next(b for b in self.registry.backends(problem.op) if b.name == name)
        rule = self._requirement(problem.op, backend)
        if rule is not None:
            message = f"{rule.backend!r} is required ({rule.scope}) but cannot serve this"
            raise BackendUnsupported(message, decision)
        raise NoBackend(f"no backend can serve this {problem.op} call", decision)

    def _requirement(self, op: str, backend: str) -> Override | None:
        """The highest rule that requires a backend."""
        return next((r for r in self.overrides(op, backend) if r.mode == "require"), None)

    def _planner(self, backend: Backend) -> Planner:
        planner = self._planners.get(backend.load)
        if planner is None:
            planner = self._planners[backend.load] = resolve(backend.load, backend.plugin)
        return planner

    def _announce(self, decision: Decision, problem: Problem, backend: str) -> None:
        """Tell the hooks of each new decision, and warn if a fixable reason blocks a faster one."""
        text = str(decision)
        with self._lock:
            if text in self._announced:
                return
            self._announced.add(text)
        try:
            self.registry.hook.attnhub_on_decision(decision=decision)
        except Exception as error:  # noqa: BLE001 - an observer must not stop a call
            self.registry.report(
                "attnhub_on_decision", f"the hook failed: {type(error).__name__}: {error}"
            )
        best, chosen = _blocked(decision, problem), decision.chosen
        if best is None or chosen is None or problem.device.type == "cpu":
            return  # on a CPU every run is a reference run; there is nothing to warn of
        rule = self._requirement(problem.op, backend)
        if rule is not None and rule.backend == chosen.name:
            return  # somebody decided, and knows
        # Sizes and times vary from step to step; what is to be done about it does not.
        key = (problem.op, decision.device, chosen.name, best.name, str(best.reasons[0]))
        if key in self._warned:
            return
        self._warned.add(key)
        warnings.warn(
            f"{problem.op}: {chosen.name} ({chosen.estimate}) was chosen; {best.name} "
            f"({best.estimate}) is blocked because {best.reasons[0]}",
            PerformanceWarning,
            stacklevel=4,
        )


def _blocked(decision: Decision, problem: Problem) -> Rejection | None:
    """The fastest rejected backend, if it beats the chosen one by WARN_RATIO."""
    chosen = decision.chosen
    structural = {n for n, f in fact_fields(type(problem)).items() if f.metadata["structural"]}
    if chosen is None or chosen.estimate.us is None:
        return None
    limit = chosen.estimate.us / WARN_RATIO
    faster = [
        r
        for r in decision.rejected
        if r.estimate is not None
        and _us(r.estimate) < limit
        and all(x.code is not Code.POLICY and x.field not in structural for x in r.reasons)
    ]
    return min(faster, key=lambda r: _us(r.estimate), default=None)


def _apply(
    rules: Iterable[Override], fitting: list[Backend], rejected: _Rejected
) -> tuple[list[Backend], list[Override]]:
    """Reject what overrides exclude; return survivors and the rules that had a say."""
    rules = list(rules)
    names = {b.name for b in fitting}
    deciding = (r for r in rules if r.mode == "require" or r.backend in names)
    decided = next((r for r in deciding if r.mode != "deny"), None)
    required = decided if decided is not None and decided.mode == "require" else None
    denied = [r for r in rules if r.mode == "deny"]
    kept = []
    for backend in fitting:
        against = [r for r in denied if r.backend == backend.name]
        if required is not None and backend.name != required.backend:
            against.append(required)
        if against:
            rejected[backend.name] = (
                backend,
                (_reason(Code.POLICY, "backend", backend.name, f"what {against[0]} allows"),),
            )
        else:
            kept.append(backend)
    # The rule that decided comes first; a preference that did not fit had no say.
    return kept, [*([] if decided is None else [decided]), *denied]


def _say(rule: Override, used: list[Override], rejected: _Rejected) -> str:
    """A rule as decisions list it, with what became of it."""
    if rule in used:
        return str(rule)
    reasons = rejected[rule.backend][1] if rule.backend in rejected else ()
    unfit = any(r.code is not Code.POLICY for r in reasons)
    return f"{rule} ({'does not fit' if unfit and rule.mode == 'prefer' else 'overridden'})"


def _us(estimate: Estimate | None) -> float:
    return float("inf") if estimate is None or estimate.us is None else estimate.us


def _reason(code: Code, field: str, actual: str, accepted: str) -> Reason:
    return Reason(code=code, field=field, actual=actual, accepted=accepted)


@functools.cache
def _torch_version() -> str:
    return metadata.version("torch").partition("+")[0]


@functools.cache
def _is_in(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def _torch_reasons(backend: Backend) -> tuple[Reason, ...]:
    if not backend.torch or _is_in(_torch_version(), backend.torch):
        return ()
    return (_reason(Code.VERSION, "torch", _torch_version(), backend.torch),)


_default: Dispatcher | None = None


def default() -> Dispatcher:
    """The dispatcher of the shared registry."""
    global _default  # noqa: PLW0603 - follows the shared registry
    registry = discovery.default()
    if _default is None or _default.registry is not registry:
        _default = Dispatcher(registry)
    return _default


@contextlib.contextmanager
def isolated() -> Iterator[Registry]:
    """A registry of the built-in backends only and a freshly read environment, for tests.

    It is the shared one until the block ends; then the old one is back, with its rules.

    Example::

        with isolated() as registry:
            registry.register(my_manifest, "mine")
    """
    global _default  # noqa: PLW0603 - put back what was there
    registry, dispatcher = Registry(), _default
    discovery.register_builtin(registry)
    shared = discovery.replace_default(registry)
    environment.cache_clear()
    try:
        yield registry
    finally:
        discovery.replace_default(shared)
        _default = dispatcher
        environment.cache_clear()
