"""One suite an op: its family's workloads through the hub, as a user's call runs them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import attnhub
from attnhub.cli import output
from attnhub.cli.suites.ceiling import Ceiling
from attnhub.core import discovery
from attnhub.core.backend import Op, resolve
from attnhub.core.decision import Decision
from attnhub.core.registry import Registry
from attnhub.core.workload import Workload
from attnhub.errors import DispatchError, PluginError
from attnhub.plugin import hookimpl
from attnhub.testing.results import Environment, Row
from attnhub.testing.timing import CLEAR_BYTES, Timing, compare_peers

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all suites of a run share.

    A torch device, a workload tag, backends to compare with, the commit of a tree without history.
    """

    device: str
    tag: str
    against: tuple[str, ...] = ()
    commit: str = ""


def find(op: Op) -> tuple[tuple[Workload, ...], str]:
    """The workloads of an op, or none and the reason.

    Raises:
        PluginError: there are some, but they do not load.
    """
    try:
        found = tuple(resolve(op.workloads, op.plugin))
        return found, "" if found else f"no workloads: {op.workloads} is empty"
    except PluginError as error:
        module = op.workloads.partition(":")[0]
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and module.startswith(cause.name):
            return (), f"no workloads: there is no module {cause.name}"
        raise


def rows(
    op: str, workload: Workload, settings: Settings, here: Environment, ceiling: Ceiling
) -> list[Row]:
    """The time of one workload, and its rate as a share of the ceiling that binds it.

    Raises:
        DispatchError: no backend serves it on this device.
    """
    with _watched() as decisions:
        ours = _make(workload, settings.device)
        ours()
        backend = _served_by(decisions, op)
        calls = {attnhub.__name__: ours, **_peers(op, workload, settings, skip=backend)}
        measured = compare_peers(
            calls,
            device=settings.device,
            clear_l2_bytes=CLEAR_BYTES if settings.device != "cpu" else 0,
        )
    case = f"{workload.name} ({backend})"
    return _rows(op, case, measured.timings, here, workload, ceiling)


def _rows(
    op: str,
    case: str,
    timings: dict[str, Timing],
    here: Environment,
    workload: Workload,
    ceiling: Ceiling,
) -> list[Row]:
    peers = {name: timing.median_us for name, timing in timings.items()}
    us = peers.pop(attnhub.__name__)
    found = [here.row(op, case, "time", us, "us", peers=peers)]
    bound = ceiling.bound(workload.work)
    if bound is not None:
        rates = {name: bound.rate(time) for name, time in peers.items()}
        found.append(
            here.row(
                op,
                case,
                bound.metric,
                bound.rate(us),
                bound.unit,
                share_of_ceiling=bound.best_us / us,
                peers=rates,
            )
        )
    return found


class _Watch:
    """A plugin without backends that notes each decision."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    @hookimpl
    def attnhub_on_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)


@contextlib.contextmanager
def _watched() -> Iterator[list[Decision]]:
    """A registry of its own for the block, so that every choice in it is made, and seen, anew."""
    registry, watch = Registry(), _Watch()
    discovery.discover(registry)
    registry.register(watch, "benchmark")
    before = discovery.replace_default(registry)
    try:
        yield watch.decisions
    finally:
        discovery.replace_default(before)


def _served_by(decisions: list[Decision], op: str) -> str:
    chosen = [d.chosen.name for d in decisions if d.op == op and d.chosen is not None]
    return "+".join(dict.fromkeys(chosen)) or "no dispatch"


def _make(workload: Workload, device: str) -> Callable[[], Any]:
    generator = torch.Generator(device=device).manual_seed(_SEED)
    return workload.make(torch.device(device), generator)


def _peers(
    op: str, workload: Workload, settings: Settings, *, skip: str
) -> dict[str, Callable[[], Any]]:
    """The same workload through each of the backends to compare with that can serve it."""
    found = {}
    for name in settings.against:
        if name == skip:
            continue
        try:
            with attnhub.use(name, op=op):
                call = _make(workload, settings.device)
                call()
                found[name] = _in_context(contextvars.copy_context(), call)
        except DispatchError as error:
            output.note(f"{op} {workload.name}: {str(error).partition(chr(10))[0]}")
    return found


def _in_context(context: contextvars.Context, call: Callable[[], Any]) -> Callable[[], Any]:
    """``call`` under the override that ``context`` was copied from, without entering it anew."""
    return lambda: context.run(call)
