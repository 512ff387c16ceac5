"""Backends of attention that are the reference with one lie told to it or by it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from attnhub.testing.conformance import Nonconformance, cases

Register = Callable[..., None]


class Liar:
    """The reference for `op`, with its problem, its batch or its run changed."""

    def __init__(
        self,
        *,
        problem: Callable[[Any], Any] = lambda p: p,
        batch: Callable[[Any, Any], Any] = lambda p, b: b,
        run: Callable[..., None] = lambda honest, *args: honest(*args),
    ) -> None:
        self._problem, self._batch, self._run = problem, batch, run

    def plan(self, problem: Any) -> Any:
        from attnhub.backends.reference.attn import attention

        plan = attention.plan(self._problem(problem))
        lie = types.SimpleNamespace()
        lie.update = lambda batch: plan.update(self._batch(problem, batch))
        lie.run = lambda *args: self._run(plan.run, *args)
        return lie


def failures(wanted: Callable[[str], bool] = lambda _: True) -> dict[str, str]:
    """Corner -> message of the cases of "liar" that fail, among those wanted."""
    found = {}
    for case in cases("liar", op="attention", pairs=0):
        corner = case.id.removeprefix("attention-cpu-")
        if wanted(corner):
            try:
                case.check()
            except Nonconformance as error:
                found[corner] = str(error)
    return found
