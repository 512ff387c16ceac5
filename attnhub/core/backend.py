"""Backend: a capability plus how to plan; Op: a public operation; both are data, free of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from attnhub.core.capability import Capability
from attnhub.core.contracts import Contract
from attnhub.core.problem import Problem, Work
from attnhub.core.reason import Code, Reason
from attnhub.errors import PluginError


class Plan(Protocol):
    """What was decided for a problem. ``run`` takes the arguments of the op's :class:`Contract`.

    ``docs/plan_contract.md`` lists them for every op, and which plans are :class:`BatchPlan`.
    """

    run: Callable[..., None]


class BatchPlan(Plan, Protocol):
    """The plan of an op with metadata."""

    def update(self, batch: Any) -> None:
        """Take over the metadata of the next batch.

        It allocates nothing that a captured graph holds.
        """
        ...


class Planner(Protocol):
    """What ``Backend.load`` names: turns a problem into a plan.

    Optional: ``specs(problem) -> Sequence[Any]`` lists the kernels that a problem needs, so that
    warm-up and ahead-of-time builds can compile them without a plan, or a GPU. A planner without
    compiled kernels leaves it out.
    """

    def plan(self, problem: Problem) -> Plan:
        """Prepare everything that does not change between runs of this problem.

        What it raises sets the backend aside for this device and these facts, and the next best is
        asked; an :class:`InvalidArgument` or an out-of-memory error reaches the caller instead, and
        a :class:`KernelError` does where there is no other backend to ask.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected device time of a call. ``source`` is ``"measured"``, ``"model"`` or ``"none"``."""

    us: float | None
    source: str
    detail: str = ""

    def __str__(self) -> str:
        return "unknown" if self.us is None else f"{_time(self.us)} ({self.source})"


def _time(us: float) -> str:
    return f"{us:.3g} us" if us < 1000 else f"{us / 1000:.3g} ms"


#: The last problem and its work: the cost models of all backends ask for it in turn.
_latest: tuple[Problem, Work] | None = None


def _work(problem: Problem) -> Work:
    """The work of a problem, formed once while one object is looked at."""
    global _latest  # noqa: PLW0603 - read and written whole, so threads only cost each other time
    latest = _latest
    if latest is None or latest[0] is not problem:
        latest = _latest = (problem, problem.work())
    return latest[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """A cost model as data: the shares of the device's ceilings a backend reaches.

    time = overhead_us + max(flops / (compute x peak), bytes / (memory x bandwidth)), the peak being
    the device's 8-bit one for work that says ``fp8``.
    ``overhead_us`` is what a call costs even when empty. ``measured_on`` says where the shares
    come from; leave it empty for a guess.
    """

    compute: float
    memory: float
    overhead_us: float = 0.0
    measured_on: str = ""

    def __call__(self, problem: Problem) -> Estimate:
        work, device = _work(problem), problem.device
        tflops = (work.fp8 and device.fp8_tflops) or device.tflops
        flop_us = work.flops / (self.compute * max(tflops, 1e-3) * 1e6)
        byte_us = work.bytes / (self.memory * max(device.bandwidth, 1e-3) * 1e3)
        bound = "compute" if flop_us > byte_us else "memory"
        detail = f"{bound}-bound" + (f"; {work.assumed}" if work.assumed else "")
        us = self.overhead_us + max(flop_us, byte_us)
        return Estimate(us=us, source="model", detail=detail)


Cost = Callable[[Problem], Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One implementation of one op.

    Args:
        name: what users write in ``use("...")``; one name may serve several ops.
        op: the op it implements.
        capability: one sheet, or several of which one must fit.
        cost: an :class:`Efficiency` or any function of a problem; must accept unknown extents.
        load: ``"module:attribute"`` of a :class:`Planner`, imported on first use.
        priority: decides between equal or unknown costs; higher first.
        torch: version range of torch it works with, as in ``">=2.6"``.
        probe: ``"module:function"`` from a :class:`Device` to reasons, or none: asks this machine
            (compiler, driver) what no sheet can know. Called once a device.
        plugin: filled in at registration.
    """

    name: str
    op: str
    capability: Capability | Sequence[Capability]
    cost: Cost
    load: str
    priority: int = 0
    torch: str = ""
    probe: str = ""
    plugin: str = ""

    def sheets(self) -> Sequence[Capability]:
        """The alternatives of ``capability``."""
        return [self.capability] if isinstance(self.capability, Capability) else self.capability

    def faults(self, cls: type[Problem]) -> list[str]:
        """What is wrong with this description of a backend for problems of ``cls``."""
        sheets = self.sheets()
        faults = [fault for sheet in sheets for fault in sheet.faults(cls)]
        if not sheets:
            faults.append("capability has no sheet; give at least one")
        try:
            SpecifierSet(self.torch)
        except InvalidSpecifier:
            faults.append(f"torch={self.torch!r} is no version range; write one as in '>=2.6'")
        if not isinstance(self.priority, (int, float)):
            faults.append(f"priority={self.priority!r} is no number")
        return faults

    def reasons(self, problem: Problem) -> tuple[Reason, ...]:
        """Unmet needs by the alternative that comes nearest; empty when one fits."""
        found = []
        for sheet in self.sheets():
            reasons = sheet.reasons(problem)
            if not reasons:
                return ()
            found.append(reasons)
        # A sheet for another device is further away than any sheet for this one.
        return min(found, key=lambda rs: (rs[0].code is Code.DEVICE, len(rs)), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A public operation. ``compare`` says how two backends' results relate.

    ``"equal"`` bit for bit, ``"close"`` within the tolerance of the dtype, ``"distribution"`` for
    random draws. ``contracts`` say what plans look like; the first that concerns a problem counts.
    ``plugin`` is filled in at registration.
    """

    name: str
    summary: str
    problem: str
    workloads: str
    compare: str = "close"
    contracts: Sequence[Contract] = ()
    plugin: str = ""


def resolve(target: str, owner: str = "attnhub") -> Any:
    """The object that ``"module:attribute"`` names.

    Raises:
        PluginError: the module does not import, or has no such attribute.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a plugin may fail in any way; it must not take others down
        raise PluginError(
            owner, f"cannot load {target!r}: {type(error).__name__}: {error}"
        ) from error


def names(backends: Iterable[Backend]) -> list[str]:
    """Distinct backend names in order."""
    return list(dict.fromkeys(b.name for b in backends))
