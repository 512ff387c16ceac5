"""Backend: a capability plus how to plan; Op: a public operation; both are data, free of torch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnhub.core.capability import Capability
from attnhub.core.problem import Problem, Work
from attnhub.core.reason import Code, Reason
from attnhub.errors import PluginError


class Plan(Protocol):
    """What was decided for a problem. ``run`` takes tensors in the order of the op's schema.

    Plans of ops with metadata (attention, mla) also have ``update(batch)``: it takes over the
    metadata of the next batch without allocating anything that a captured graph holds.
    """

    run: Callable[..., None]


class Planner(Protocol):
    """What ``Backend.load`` names: turns a problem into a plan.

    ``specs(problem)`` lists the kernels a problem needs; warm-up and ahead-of-time builds call
    only that. A planner without compiled kernels may leave it out.
    """

    def plan(self, problem: Problem) -> Plan:
        """Prepare everything that does not change between runs of this problem."""
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


@functools.lru_cache(maxsize=256)
def _work(problem: Problem) -> Work:
    """The work of a problem: every backend's cost model asks for it."""
    return problem.work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """A cost model as data: the shares of the device's ceilings a backend reaches.

    time = overhead_us + max(flops / (compute x peak), bytes / (memory x bandwidth)).
    ``overhead_us`` is what a call costs even when empty. ``measured_on`` says where the shares
    come from; leave it empty for a guess.
    """

    compute: float
    memory: float
    overhead_us: float = 0.0
    measured_on: str = ""

    def __call__(self, problem: Problem) -> Estimate:
        work, device = _work(problem), problem.device
        flop_us = work.flops / (self.compute * max(device.tflops, 1e-3) * 1e6)
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
        probe: ``"module:function"`` asking this machine (compiler, driver): reasons, or none.
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
    random draws.
    """

    name: str
    summary: str
    problem: str
    workloads: str
    compare: str = "close"


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
