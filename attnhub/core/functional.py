"""Ops without metadata: one torch op each, one cached plan per problem, one dictionary look-up.

Every op is destination-passing: its schema takes the outputs as mutable arguments and returns
nothing, so its fake implementation is empty and eager, compiled and captured code take one path.
Ops are defined with ``torch.library.Library`` because its call costs a tenth of what the
``custom_op`` decorator's does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from attnhub.core import discovery, dispatch, options
from attnhub.core.problem import Problem
from attnhub.core.recent import Recent

#: How many plans an op keeps: far more than a server meets, whose sizes are bucketed.
_PLANS = 1024

F = TypeVar("F", bound=Callable[..., Any])

#: Keeps the registrations alive for the life of the process.
LIBRARY = torch.library.Library("attnhub", "DEF")


def define(name: str, schema: str, implementation: Callable[..., None]) -> Any:
    """Register ``attnhub::name`` with an empty fake and return its overload."""
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attnhub::{name}", lambda *_: None, lib=LIBRARY)
    return getattr(torch.ops.attnhub, name).default


def constant_while_tracing(function: F) -> F:
    """Let a compiler call ``function`` once, while tracing, and keep its result as a constant.

    The mark of ``torch.compiler.assume_constant_result``, without what that imports: a second of
    compiler for callers who never compile.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
    return function


class FunctionalOp:
    """A dispatched op whose plan depends on tensor facts only.

    Args:
        name: the op's public name; ``norm.rmsnorm`` becomes ``torch.ops.attnhub.norm_rmsnorm``.
        schema: torch schema, destination-passing: ``"(Tensor x, ..., Tensor(a!) out) -> ()"``.
        key: the raw facts of a call as a hashable; must determine the problem.
        problem: builds the problem; called only when the key is new.
        flatten, unflatten: between a call's arguments and the schema's, where a plan takes
            objects (scales, named parameters) that a torch op cannot.
        facts: how many trailing arguments only choose the plan and do not reach its ``run``.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        key: Callable[..., Hashable],
        problem: Callable[..., Problem],
        flatten: Callable[..., tuple[Any, ...]] | None = None,
        unflatten: Callable[..., tuple[Any, ...]] | None = None,
        facts: int = 0,
    ) -> None:
        self.name = name
        self._flatten = flatten
        self._facts = facts
        self._key = key
        self._problem = problem
        self._plans: Recent[Callable[..., None]] = Recent(_PLANS)
        implementation = self.run
        if unflatten is not None:
            implementation = lambda *flat: self.run(*unflatten(*flat))  # noqa: E731
        self.overload = define(name.replace(".", "_"), schema, implementation)

    def __call__(self, *args: Any) -> None:
        """Run the op: through torch's dispatcher while compiling, directly otherwise."""
        if torch.compiler.is_compiling():
            self.overload(*(args if self._flatten is None else self._flatten(*args)))
        else:
            self.run(*args)

    def run(self, *args: Any) -> None:
        """Look the plan up by the call's facts and run it."""
        registry = discovery.default()
        key = (self._key(*args), options.scope.get(), registry.generation)
        run = self._plans.get(key)
        if run is None:
            run = self._select(key, args)
        run(*(args[: -self._facts] if self._facts else args))

    def _select(self, key: Any, args: tuple[Any, ...]) -> Callable[..., None]:
        plan, _ = dispatch.default().plan(self._problem(*args))
        return self._plans.put(key, plan.run, world=key[-1])
