"""Backends that are the reference with one lie told to it or by it."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import torch

from attnhub.plugin import registry
from attnhub.testing.conformance import Nonconformance, cases

Register = Callable[..., None]


def honest_planner(op: str) -> Any:
    """The reference for `op`."""
    (reference,) = [b for b in registry().backends(op) if b.name == "reference"]
    module, _, attribute = reference.load.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Liar:
    """The reference for `op`, with its problem, its batch or its run changed.

    `run` is given the honest run, then its arguments.
    """

    def __init__(
        self,
        op: str = "attention",
        *,
        problem: Callable[[Any], Any] = lambda p: p,
        batch: Callable[[Any, Any], Any] = lambda p, b: b,
        run: Callable[..., None] = lambda honest, *args: honest(*args),
    ) -> None:
        self.op, self._problem, self._batch, self._run = op, problem, batch, run

    def plan(self, problem: Any) -> Any:
        plan = honest_planner(self.op).plan(self._problem(problem))
        lie = types.SimpleNamespace()
        lie.update = lambda batch: plan.update(self._batch(problem, batch))
        lie.run = lambda *args: self._run(plan.run, *args)
        return lie


def failures(
    wanted: Callable[[str], bool] = lambda _: True, op: str = "attention"
) -> dict[str, str]:
    """Corner -> message of the cases of "liar" that fail, among those wanted."""
    found = {}
    for case in cases("liar", op=op, pairs=0):
        corner = case.id.removeprefix(f"{op}-cpu-")
        if wanted(corner):
            try:
                case.check()
            except Nonconformance as error:
                found[corner] = str(error)
    return found


def assert_noticed(register: Register, op: str, lie: dict[str, Any], noticed: set[str]) -> None:
    """The corners in which a lie makes the suite fail are those of ``noticed``.

    What is noticed in the base is in most other corners too, and those need not be named.
    """
    register(Liar(op, **lie), op=op)
    messages = failures(op=op)
    assert "raised" not in "".join(messages.values())
    found = {corner.removeprefix("serves-") for corner in messages}
    if "base" in noticed:
        assert noticed <= found
    else:
        assert found == noticed


def packed(x: torch.Tensor) -> torch.Tensor:
    """Read as if it were contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride())
