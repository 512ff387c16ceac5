"""Caches with an end: what varies from call to call must not grow a server for ever."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, TypeVar

V = TypeVar("V")


class Recent(dict[Hashable, V]):
    """A dictionary of the last ``limit`` entries, all of one ``world``; ``get`` takes no lock.

    What was decided for a registry as it no longer is can never be asked for again, so the first
    entry of another world drops all others. Of one world, the oldest entry goes first.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._world: Any = None
        self._lock = threading.Lock()

    def put(self, key: Hashable, value: V, world: Any = None) -> V:
        """Keep ``value`` and return it."""
        with self._lock:
            if world != self._world:
                self.clear()
                self._world = world
            while len(self) >= self._limit:
                del self[next(iter(self))]
            self[key] = value
        return value


class Once(Recent[None]):
    """Which of the last ``limit`` things were said already."""

    def first(self, key: Hashable) -> bool:
        """Whether ``key`` is new; from now on it is not."""
        if key in self:
            return False
        self.put(key, None)
        return True
