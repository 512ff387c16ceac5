"""Contracts: what plans of an op look like, as data that documents print and tests hold true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnhub.core.capability import Constraint
from attnhub.core.problem import Problem


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
    def methods(self) -> tuple[str, ...]:
        """The methods that a plan must have."""
        return ("run", "update") if self.update else ("run",)
