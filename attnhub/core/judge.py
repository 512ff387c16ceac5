"""Judge: asks backends whether they fit and what they cost, and lets no answer do harm.

Sheets, constraints, version ranges, probes and cost models are a plugin's data and code: whatever
is wrong with them is a reason against that backend or an unknown cost, reported once.
"""

from __future__ import annotations

import functools
import math
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet

from attnhub.core import profile as profiles
from attnhub.core.backend import Backend, Estimate, resolve
from attnhub.core.device import Device
from attnhub.core.env import environment
from attnhub.core.problem import Problem
from attnhub.core.reason import Code, Reason
from attnhub.core.registry import Registry


class Judge:
    """What the dispatcher knows of one registry's backends."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._probed: dict[tuple[str, Device], tuple[Reason, ...]] = {}

    def reasons(self, backend: Backend, problem: Problem) -> tuple[Reason, ...]:
        """Every reason that needs no look at the machine; empty when the backend fits."""
        fault = self._registry.check(backend, type(problem))
        if fault:
            return (reason(Code.IMPORT, "capability", fault, "a valid sheet"),)
        failed = self._registry.failure(backend, problem)
        if failed:
            return (reason(Code.IMPORT, "plugin", failed, "one that loads and plans"),)
        try:
            return (*backend.reasons(problem), *_torch_reasons(backend))
        except Exception as error:  # noqa: BLE001 - a constraint may be a plugin's own class
            text = self._report(backend, "capability", error)
            return (reason(Code.IMPORT, "capability", text, "one that can be asked"),)

    def probe(self, backend: Backend, device: Device) -> tuple[Reason, ...]:
        """What the backend's probe says of this machine; each probe is asked once a device."""
        if not backend.probe or device.simulated:
            return ()
        key = (backend.probe, device)
        found = self._probed.get(key)
        if found is None:
            found = self._probed[key] = self._ask(backend, device)
        return found

    def _ask(self, backend: Backend, device: Device) -> tuple[Reason, ...]:
        try:
            return _checked_reasons(resolve(backend.probe, backend.plugin)(device))
        except Exception as error:  # noqa: BLE001 - a probe that fails says: not here
            self._report(backend, "probe", error)
            return (reason(Code.PROBE, "probe", str(error), "a probe that runs"),)

    def estimate(self, backend: Backend, problem: Problem) -> Estimate:
        """Measured time if the profile has it, else the backend's cost model."""
        measured = profiles.load(environment().profile).estimate(backend.name, problem)
        if measured is not None:
            return measured
        try:
            return _checked(backend.cost(problem))
        except Exception as error:  # noqa: BLE001 - a broken cost model must not stop a call
            self._report(backend, "cost model", error)
            return Estimate(us=None, source="none", detail=f"cost model failed: {error}")

    def _report(self, backend: Backend, what: str, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        report = f"the {what} of backend {backend.name!r} failed: {text}"
        self._registry.report(backend.plugin or backend.name, report)
        return text


def reason(code: Code, field: str, actual: str, accepted: str) -> Reason:
    """A reason without a hint."""
    return Reason(code=code, field=field, actual=actual, accepted=accepted)


def _checked_reasons(given: Any) -> tuple[Reason, ...]:
    found = tuple(given)
    if wrong := [x for x in found if not isinstance(x, Reason)]:
        raise TypeError(f"it gave {wrong[0]!r}, which is no Reason")
    return found


def _checked(estimate: Any) -> Estimate:
    if not isinstance(estimate, Estimate):
        raise TypeError(f"it gave {estimate!r}, needs an Estimate")
    us = estimate.us
    if us is not None and not (isinstance(us, (int, float)) and 0 <= us < math.inf):
        raise ValueError(f"it gave us={us!r}, needs a number >= 0, or None")
    return estimate


@functools.cache
def _torch_version() -> str:
    return metadata.version("torch").partition("+")[0]


@functools.cache
def _is_in(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def _torch_reasons(backend: Backend) -> tuple[Reason, ...]:
    if not backend.torch or _is_in(_torch_version(), backend.torch):
        return ()
    return (reason(Code.VERSION, "torch", _torch_version(), backend.torch),)
