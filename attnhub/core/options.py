"""Overrides: who may decide for the dispatcher, and in which order.

Highest first: the ``backend=`` argument, ``with use(...)`` (innermost first), ``configure(...)``
rules, the environment variable ``ATTNHUB_BACKEND``. The highest rule that matches an op wins; the
others are listed in the decision as overridden. ``deny`` rules of every scope add up.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from attnhub.core.env import environment
from attnhub.errors import InvalidArgument

MODES = ("require", "prefer", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One rule: on ops matching the glob ``op``, require, prefer or deny ``backend``."""

    backend: str
    op: str = "*"
    mode: str = "require"
    scope: str = "config"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgument(f"override mode {self.mode!r}: use one of {', '.join(MODES)}")

    def matches(self, op: str) -> bool:
        """Whether this rule speaks about ``op``."""
        return fnmatch.fnmatchcase(op, self.op)

    def __str__(self) -> str:
        where = "" if self.op == "*" else f" for {self.op}"
        return f"{self.scope}: {self.mode} {self.backend}{where}"


#: Innermost last; a tuple, so that it is a cheap part of every decision's cache key.
scope: ContextVar[tuple[Override, ...]] = ContextVar("attnhub_use", default=())


@contextlib.contextmanager
def push(override: Override) -> Iterator[None]:
    """Apply ``override`` to this thread or task until the block ends."""
    token = scope.set((*scope.get(), override))
    try:
        yield
    finally:
        scope.reset(token)


def from_environment() -> tuple[Override, ...]:
    """The rules in ``ATTNHUB_BACKEND``."""
    rules = []
    for item in filter(None, map(str.strip, environment().backend.split(","))):
        head, colon, rest = item.partition(":")
        mode, rule = (head, rest) if colon else ("require", item)
        op, equals, backend = rule.rpartition("=")
        rules.append(
            Override(backend=backend, op=op if equals else "*", mode=mode, scope="environment")
        )
    return tuple(rules)
