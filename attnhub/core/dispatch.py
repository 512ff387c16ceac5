"""Dispatcher: from a problem to a decision, and from a decision to a plan.

Order of work: overrides -> capabilities (all reasons of all backends) -> probes of survivors ->
ranking by measured profile, else cost model -> decision. Decisions are cached by problem, override
scope and registry generation; a hit is one dictionary look-up without a lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attnhub.core import discovery, options, policy
from attnhub.core.backend import Backend, Estimate, Plan, Planner, resolve
from attnhub.core.contracts import plan_fault
from attnhub.core.decision import Candidate, Decision, Rejection
from attnhub.core.env import environment
from attnhub.core.judge import Judge
from attnhub.core.known_plugins import known_plugins
from attnhub.core.near import near
from attnhub.core.notices import Notices
from attnhub.core.options import Override
from attnhub.core.problem import Problem
from attnhub.core.reason import Code, Reason
from attnhub.core.recent import Recent
from attnhub.core.registry import Registry
from attnhub.errors import BackendUnsupported, DispatchError, NoBackend, PluginError, UnknownName

#: How many decisions are kept: far more than a server meets, whose sizes are bucketed.
_DECISIONS = 4096


class _Choice(NamedTuple):
    """A decision, and the backend it chose: its plugin may be unregistered before it plans."""

    decision: Decision
    backend: Backend | None


class Dispatcher:
    """Chooses among one registry's backends; :func:`default` is the shared one."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.rules: tuple[Override, ...] = ()
        self._judge = Judge(registry)
        self._notices = Notices(registry)
        self._choices: Recent[_Choice] = Recent(_DECISIONS)
        self._planners: dict[str, Planner] = {}

    # -- deciding --------------------------------------------------------------------------

    def decide(self, problem: Problem, backend: str = "") -> Decision:
        """The decision for ``problem``; ``backend`` is the caller's own requirement, if any."""
        return self._choose(problem, backend).decision

    def _choose(self, problem: Problem, backend: str) -> _Choice:
        generation = self.registry.generation
        key = (problem, backend, options.scope.get(), generation)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices.put(key, self._select(problem, backend), generation)
        return choice

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
            # A rule for every op is about those its backend serves; one with a pattern names them.
            if rule.matches(op) and (rule.op != "*" or rule.backend in serving):
                found.append(rule)
        return found

    def check_name(self, rule: Override) -> None:
        """Raise UnknownName for a backend or an op that nobody registered, with what is near."""
        if rule.backend not in self.registry.names():
            plugins = known_plugins()
            plugin = plugins.get(rule.backend)
            # One that is not installed helps only somebody who all but named it.
            known = [*self.registry.names(), *near(rule.backend, plugins, cutoff=0.8)]
            what = plugin.install if plugin else ""
            raise UnknownName("backend", rule.backend, known, f"({rule.scope})", what=what)
        ops = self.registry.ops
        if rule.scope != "argument" and not any(map(rule.matches, ops)):
            raise UnknownName("op", rule.op, ops, f"({rule.scope}: {rule.mode} {rule.backend})")

    def _select(self, problem: Problem, backend: str) -> _Choice:
        rules = self.overrides(problem.op, backend)
        rejected: policy.Rejected = {}
        fitting: list[Backend] = []
        for candidate in self.registry.backends(problem.op):
            reasons = self._judge.reasons(candidate, problem)
            if reasons:
                rejected[candidate.name] = (candidate, reasons)
            else:
                fitting.append(candidate)
        fitting, used = policy.apply(rules, fitting, rejected)
        for candidate in tuple(fitting):
            if reasons := self._judge.probe(candidate, problem.device):
                rejected[candidate.name] = (candidate, reasons)
                fitting.remove(candidate)
        ranked = sorted(
            ((self._judge.estimate(b, problem), b) for b in fitting),
            key=lambda pair: (_us(pair[0]), -pair[1].priority, pair[1].name),
        )
        preferred = {r.backend for r in used[:1] if r.mode == "prefer"}
        ranked.sort(key=lambda pair: pair[1].name not in preferred)
        serving = {*rejected, *(b.name for _, b in ranked)}
        said = tuple(policy.say(r, used, rejected, serving) for r in rules)
        decision = self._decision(problem, ranked, rejected, said)
        return _Choice(decision, ranked[0][1] if ranked else None)

    def _decision(
        self,
        problem: Problem,
        ranked: list[tuple[Estimate, Backend]],
        rejected: policy.Rejected,
        overrides: tuple[str, ...],
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
        unlock = [f"{r.name} {text}" for r in rows if (text := r.unlock)]
        return Decision(
            op=problem.op,
            problem=str(problem).partition(": ")[2],
            device=str(problem.device),
            extent=problem.extent.text(problem.sizes),
            ranked=tuple(Candidate(name=b.name, plugin=b.plugin, estimate=e) for e, b in ranked),
            rejected=tuple(rows),
            overrides=overrides,
            notes=tuple(f"would fit: {text}" for text in unlock),
        )

    def _if_possible(
        self, backend: Backend, reasons: tuple[Reason, ...], problem: Problem
    ) -> Estimate | None:
        """What a rejected backend would cost, unless this device can never run it."""
        if any(r.code is Code.DEVICE for r in reasons):
            return None
        return self._judge.estimate(backend, problem)

    # -- planning --------------------------------------------------------------------------

    def plan(
        self, problem: Problem, backend: str = "", *, held: Mapping[str, Plan] | None = None
    ) -> tuple[Plan, Decision]:
        """A plan by the best backend that loads and plans.

        Args:
            problem: what is to be planned.
            backend: the caller's own requirement, if any.
            held: by backend name, plans of a problem that differs in its extent at most: where one
                of these backends is chosen, its plan is returned and no other is made.

        Raises:
            BackendUnsupported: a required backend cannot serve this problem.
            NoBackend: none can.
            KernelError: the only backend that fits cannot make or launch a kernel.
            torch.OutOfMemoryError: the device has no room for what the plan needs.
        """
        while True:
            choice = self._choose(problem, backend)
            rule = self._requirement(problem.op, backend)
            if choice.backend is None:
                raise _refusal(choice.decision, rule)
            plan = held.get(choice.backend.name) if held else None
            if plan is None:
                alone = len(choice.decision.ranked) == 1  # a requirement leaves no other
                plan = self._try(choice.backend, problem, alone=alone)
            if plan is not None:
                self._notices.tell(choice.decision, problem, rule.backend if rule else "")
                return plan, choice.decision

    def _try(self, backend: Backend, problem: Problem, *, alone: bool) -> Plan | None:
        """A plan by this backend; None once it is set aside."""
        concerned: Problem | None = None  # code that does not load serves no problem at all
        try:
            planner = self._planner(backend)
            concerned = problem
            plan = planner.plan(problem)
            self._check_plan(plan, backend, problem)
        except Exception as error:  # noqa: BLE001 - a plugin that crashes is set aside, loudly
            self.registry.mark_failed(backend, concerned, error, alone=alone)
            return None
        return plan

    def _planner(self, backend: Backend) -> Planner:
        planner = self._planners.get(backend.load)
        if planner is None:
            planner = resolve(backend.load, backend.plugin)
            if not callable(getattr(planner, "plan", None)):
                raise PluginError(backend.plugin, f"{backend.load!r} has no method plan(problem)")
            self._planners[backend.load] = planner
        return planner

    def _check_plan(self, plan: Any, backend: Backend, problem: Problem) -> None:
        contract = self.registry.contract(problem)
        fault = plan_fault(plan, contract)
        if fault:
            raise PluginError(
                backend.plugin,
                f"plan() of {backend.name!r} gave a {type(plan).__name__} {fault}; "
                f"docs/plan_contract.md says what plans of {problem.op!r} have",
            )

    def _requirement(self, op: str, backend: str) -> Override | None:
        """The highest rule that requires a backend."""
        return next((r for r in self.overrides(op, backend) if r.mode == "require"), None)


def _refusal(decision: Decision, rule: Override | None) -> DispatchError:
    if rule is not None:
        message = f"{rule.backend!r} is required ({rule.scope}) but cannot serve this"
        return BackendUnsupported(message, decision)
    return NoBackend(f"no backend can serve this {decision.op} call", decision)


def _us(estimate: Estimate) -> float:
    return float("inf") if estimate.us is None else estimate.us


_default: Dispatcher | None = None
_lock = threading.Lock()


def default() -> Dispatcher:
    """The dispatcher of the shared registry."""
    global _default  # noqa: PLW0603 - follows the shared registry
    registry = discovery.default()
    found = _default
    if found is None or found.registry is not registry:
        with _lock:  # two dispatchers of one registry would each have their own rules
            found = _default
            if found is None or found.registry is not registry:
                found = _default = Dispatcher(registry)
    return found


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
