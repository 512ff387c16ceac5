"""Registry: which ops and backends exist. Readers see immutable tuples and take no lock."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pluggy
from packaging.specifiers import SpecifierSet

from attnhub.core import hooks
from attnhub.core.backend import Backend, Op, names, resolve
from attnhub.core.contracts import Contract
from attnhub.core.decision import Decision
from attnhub.core.near import did_you_mean
from attnhub.core.problem import Extent, Problem
from attnhub.core.recent import Once
from attnhub.errors import AttnHubError, KernelError, PluginError, PluginWarning, UnknownName

#: Every state of every registry gets its own number, so that caches need no other key.
_generations = itertools.count(1)

#: Importing a manifest that takes longer than this is reported: it is meant to be data.
SLOW_LOAD_SECONDS = 0.5
#: How many reports are remembered, so as to make each once.
_REPORTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin as ``attnhub doctor`` shows it; ``error`` says what of it cannot be used."""

    name: str
    version: str = ""
    backends: tuple[str, ...] = ()
    load_ms: float = 0.0
    error: str = ""


class Registry:
    """Ops and backends by name. Use :func:`attnhub.core.discovery.default` for the shared one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager("attnhub")
        self._manager.add_hookspecs(hooks.Specs)
        self._backends: dict[str, tuple[Backend, ...]] = {}
        self._ops: dict[str, Op] = {}
        self.plugins: dict[str, PluginInfo] = {}
        self._failed: dict[tuple[str, str, Problem | None], str] = {}
        self._faults: dict[tuple[str, str], str] = {}
        self._reported = Once(_REPORTS)
        self.generation = next(_generations)

    # -- reading ---------------------------------------------------------------------------

    @property
    def ops(self) -> dict[str, Op]:
        """Every op by name (a copy)."""
        return dict(self._ops)

    def op(self, name: str) -> Op:
        """The op called ``name``; UnknownName lists the nearest."""
        try:
            return self._ops[name]
        except KeyError:
            raise UnknownName("op", name, self._ops) from None

    def backends(self, op: str) -> tuple[Backend, ...]:
        """The backends of ``op`` in registration order."""
        return self._backends.get(op, ())

    def contract(self, problem: Problem) -> Contract | None:
        """What plans of ``problem`` look like; None where its op does not say."""
        op = self._ops.get(problem.op)
        return next((c for c in (op.contracts if op else ()) if c.concerns(problem)), None)

    def plan_methods(self, problem: Problem) -> tuple[str, ...]:
        """The methods that plans of ``problem`` must have."""
        contract = self.contract(problem)
        return ("run",) if contract is None else contract.methods

    def names(self) -> list[str]:
        """Every backend name."""
        return names(b for group in self._backends.values() for b in group)

    def packages(self) -> list[str]:
        """The top-level packages of every backend's code; what comes with it lies there too."""
        loads = (b.load for group in self._backends.values() for b in group)
        return list(dict.fromkeys(["attnhub", *(re.split("[.:]", load)[0] for load in loads)]))

    def observe(self, decision: Decision) -> None:
        """Call ``attnhub_on_decision`` of each plugin; one that fails is reported by name."""
        hook = self._manager.hook.attnhub_on_decision
        everyone = self._manager.get_plugins()
        for plugin in [impl.plugin for impl in reversed(hook.get_hookimpls())]:
            call = self._manager.subset_hook_caller(hook.name, everyone - {plugin})
            try:
                call(decision=decision)
            except Exception as error:  # noqa: BLE001 - an observer must not stop a call
                name = self._manager.get_name(plugin) or repr(plugin)
                self.report(name, f"{hook.name} failed: {type(error).__name__}: {error}")

    # -- writing ---------------------------------------------------------------------------

    def register(self, plugin: Any, name: str, *, version: str = "", load_ms: float = 0.0) -> None:
        """Add a plugin: any object or module with ``hookimpl`` functions.

        A backend for an op that there is not is reported at once: register the op's plugin first.

        Raises:
            PluginError: the name or a backend is taken, the plugin needs another version of the
                interface, or its contract is broken. Nothing of it stays registered then.
        """
        with self._lock:
            self._add(plugin, name, version, load_ms)
            self.check_ops()

    def _add(self, plugin: Any, name: str, version: str, load_ms: float) -> None:
        with self._lock:
            if self._manager.has_plugin(name):
                raise PluginError(name, "already registered; unregister it first")
            try:
                self._manager.register(plugin, name)
                self._manager.check_pending()
                backends, ops = self._collect(plugin, name)
            except Exception as error:
                if self._manager.has_plugin(name):
                    self._manager.unregister(name=name)
                if isinstance(error, PluginError):
                    raise
                raise PluginError(name, f"{type(error).__name__}: {error}") from error
            self._publish(backends, ops)
            self.plugins[name] = PluginInfo(
                name=name, version=version, backends=tuple(names(backends)), load_ms=load_ms
            )
            if load_ms > SLOW_LOAD_SECONDS * 1e3:
                self.report(name, f"its manifest took {load_ms:.0f} ms to import; it must be data")

    def unregister(self, name: str) -> None:
        """Remove a plugin and its backends."""
        with self._lock:
            if not self._manager.has_plugin(name):
                raise UnknownName("plugin", name, self.plugins)
            self._manager.unregister(name=name)
            del self.plugins[name]
            self._backends = {
                op: tuple(b for b in group if b.plugin != name)
                for op, group in self._backends.items()
            }
            left = {(op, b.name) for op, group in self._backends.items() for b in group}
            self._failed = {key: why for key, why in self._failed.items() if key[:2] in left}
            self._faults.clear()
            self.generation = next(_generations)

    def check_ops(self) -> None:
        """Report backends for ops that nobody registered, and let their plugins' rows say so.

        Call it once every plugin is there that may bring ops: their order does not matter.
        """
        with self._lock:
            for name, info in self.plugins.items():
                loaded = self._manager.has_plugin(name)  # else its error says why it is not
                if loaded and (text := self._stray(name)) != info.error:
                    self.plugins[name] = replace(info, error=text)
                    if text:
                        self.report(name, text)

    def _stray(self, plugin: str) -> str:
        """The backends of a plugin that no call can reach, since their ops do not exist."""
        return "; ".join(
            f"backend {backend.name!r} is for op {op!r}, which nobody registered"
            f"{did_you_mean(op, self._ops)}"
            for op, group in self._backends.items()
            if op not in self._ops
            for backend in group
            if backend.plugin == plugin
        )

    def load_entry_point(self, entry: Any) -> None:
        """Load and register one entry point; a failure sets it aside and is reported once.

        Ops may come with later entry points: :meth:`check_ops` looks once all are loaded.
        """
        start = time.perf_counter()
        version = entry.dist.version if getattr(entry, "dist", None) else ""
        try:
            plugin = entry.load()
            load_ms = (time.perf_counter() - start) * 1e3
            self._add(plugin, entry.name, version, load_ms)
        except BaseException as error:  # even SystemExit at import must not take the host down
            if isinstance(error, KeyboardInterrupt):
                raise
            text = (
                str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            )
            name = entry.name
            if name in self.plugins:  # a second plugin of a name must not hide the first
                name = f"{name} ({entry.value})"
            self.plugins[name] = PluginInfo(name=name, version=version, error=text)
            self.report(name, text)

    def mark_failed(
        self,
        backend: Backend,
        problem: Problem | None,
        error: Exception,
        doing: str = "plan()",
        *,
        alone: bool = False,
    ) -> None:
        """Set a backend aside; every later decision that concerns it shows why.

        Args:
            backend: the one that failed.
            problem: it is set aside for this device and these facts, whatever the sizes; None is
                for every problem (its code does not load).
            error: what it raised; call this while it is being handled.
            doing: which method of the plugin raised it.
            alone: no other backend fits, or this one is required.

        Raises:
            Exception: ``error`` itself, where another backend is no answer: the device has no
                memory left, an :class:`AttnHubError` says that the caller's values cannot be
                taken, or it is a KernelError and this backend is ``alone``.
        """
        if isinstance(error, PluginError):
            text = str(error)
        elif isinstance(error, KernelError) and error.is_of_backend and not alone:
            text = f"{doing} failed: {type(error).__name__}: {error.brief}"
        elif _is_not_its_fault(error):
            raise error
        else:
            text = f"{doing} failed: {type(error).__name__}: {error}"
        with self._lock:
            if any(b is backend for b in self.backends(backend.op)):  # else it is gone already
                self._failed[backend.op, backend.name, _anysize(problem)] = text
            self.generation = next(_generations)
        self.report(backend.plugin or backend.name, f"backend {backend.name!r} set aside: {text}")

    def failure(self, backend: Backend, problem: Problem) -> str:
        """Why a backend was set aside for problems like this one, or ``""``."""
        if not self._failed:
            return ""
        key = (backend.op, backend.name)
        return self._failed.get((*key, None)) or self._failed.get((*key, _anysize(problem)), "")

    def failures(self, backend: Backend) -> list[str]:
        """Why a backend was set aside, for whatever problems, each reason once."""
        key = (backend.op, backend.name)
        return list(dict.fromkeys(why for at, why in self._failed.items() if at[:2] == key))

    def touch(self) -> None:
        """Make every cached decision and plan stale."""
        self.generation = next(_generations)

    def check(self, backend: Backend, problem: type[Problem]) -> str:
        """What is wrong with a backend's capability sheets for this problem class, or ``""``."""
        key = (backend.op, backend.name)
        if key not in self._faults:
            try:
                faults = backend.faults(problem)
            except Exception as error:  # noqa: BLE001 - a sheet may be anything at all
                faults = [f"{type(error).__name__}: {error}"]
            self._faults[key] = "; ".join(faults)
            if faults:
                self.report(
                    backend.plugin or backend.name,
                    f"backend {backend.name!r} of {backend.op!r} set aside: {self._faults[key]}",
                )
        return self._faults[key]

    def report(self, plugin: str, text: str) -> None:
        """Warn of a fault of a plugin, once for each text."""
        if self._reported.first((plugin, text)):
            warnings.warn(f"plugin {plugin!r}: {text}", PluginWarning, stacklevel=3)

    # -- inside ----------------------------------------------------------------------------

    def _collect(self, plugin: Any, name: str) -> tuple[list[Backend], list[Op]]:
        others = [p for p in self._manager.get_plugins() if p is not plugin]

        def call(hook: str, default: Any) -> Any:
            results = self._manager.subset_hook_caller(hook, others)()
            return results[0] if results else default

        wanted = call("attnhub_api", ">=1.0,<2")
        if hooks.API_VERSION not in SpecifierSet(wanted):
            raise PluginError(
                name,
                f"needs plugin interface {wanted}, this attnhub has {hooks.API_VERSION}; "
                "install matching versions of the two",
            )
        backends = [replace(b, plugin=name) for b in call("attnhub_backends", ())]
        for backend in backends:
            texts = (backend.name, backend.op, backend.load, backend.torch, backend.probe)
            if not all(isinstance(x, str) for x in texts):
                raise PluginError(name, f"name, op, load, torch, probe must be texts: {backend!r}")
        ops = [replace(op, plugin=name) for op in call("attnhub_ops", ())]
        taken = {(op, b.name) for op, group in self._backends.items() for b in group}
        for backend in backends:
            if (backend.op, backend.name) in taken:
                raise PluginError(name, f"{backend.op!r} already has a backend {backend.name!r}")
            taken.add((backend.op, backend.name))
        known = set(self._ops)
        for op in ops:
            if op.name in known:
                raise PluginError(name, f"op {op.name!r} is already registered")
            known.add(op.name)
            for contract in op.contracts:
                _ = contract.arguments  # refuses what is not written as in Python
        return backends, ops

    def _publish(self, backends: Iterable[Backend], ops: Iterable[Op]) -> None:
        table = dict(self._backends)
        for backend in backends:
            table[backend.op] = (*table.get(backend.op, ()), backend)
        self._backends = table
        self._ops = {**self._ops, **{op.name: op for op in ops}}
        self.generation = next(_generations)

    def problem_class(self, op: str) -> type[Problem]:
        """The problem class of an op (imports its family)."""
        found = self.op(op)
        cls: type[Problem] = resolve(found.problem, found.plugin)
        return cls


def _anysize(problem: Problem | None) -> Problem | None:
    return None if problem is None else replace(problem, extent=Extent())


def _is_not_its_fault(error: Exception) -> bool:
    """Whether the caller or the device is to blame, so that the error must reach the caller."""
    torch = sys.modules.get("torch")  # what nobody imported has not raised either
    return isinstance(
        error, AttnHubError if torch is None else (AttnHubError, torch.OutOfMemoryError)
    )
