"""Contracts: what plans of an op look like, as data that documents print and tests hold true."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnhub.core.constraints import Constraint
from attnhub.core.problem import Problem
from attnhub.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a plan has.

    Args:
        run: the arguments of ``run`` in order, written as in Python, with shapes behind the type:
            ``"x: Tensor[tokens, hidden], eps: float"``. ``Out`` is a tensor that ``run`` writes in
            full, ``InOut`` one that it reads and changes; it returns nothing.
        update: the type of the batch that ``update`` takes before the first ``run``, or ``""``
            where plans have no ``update``.
        when: which problems of the op it is for; empty is for all.
        note: what the types do not say.
    """

    run: str
    update: str = ""
    when: Mapping[str, Constraint] = field(default_factory=dict)
    note: str = ""

    def concerns(self, problem: Problem) -> bool:
        """Whether plans of ``problem`` are of this form."""
        return all(c.accepts(getattr(problem, name)) for name, c in self.when.items())

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what ``run`` takes, in order.

        Raises:
            InvalidArgument: ``run`` is not written as in Python.
        """
        return _names(self.run)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that a plan must have."""
        return ("run", "update") if self.update else ("run",)


@functools.cache
def _names(run: str) -> tuple[str, ...]:
    try:
        (function,) = ast.parse(f"def run({run}): ...").body
        assert isinstance(function, ast.FunctionDef)
    except SyntaxError as error:
        raise InvalidArgument(
            f"Contract(run={run!r}): write the arguments as in Python, "
            f"'x: Tensor[tokens, hidden], eps: float' ({error.msg})"
        ) from error
    return tuple(argument.arg for argument in function.args.args)


def plan_fault(plan: Any, contract: Contract | None) -> str:
    """What a plan lacks of its contract, or ``""``; without one it needs ``run`` alone."""
    methods = ("run",) if contract is None else contract.methods
    if missing := [name for name in methods if not callable(getattr(plan, name, None))]:
        return f"without {' and '.join(missing)}()"
    if contract is None:
        return ""
    calls = {"run": contract.arguments, "update": ("batch",)}
    faults = (_call_fault(name, getattr(plan, name), calls[name]) for name in methods)
    return next(filter(None, faults), "")


def _call_fault(name: str, method: Callable[..., Any], arguments: tuple[str, ...]) -> str:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # some callables have none; calling them says what is wrong
    try:
        signature.bind(*arguments)
    except TypeError as error:
        taken = ", ".join(arguments)
        return f"whose {name}{signature} is called as {name}({taken}) by position: {error}"
    return ""
