"""What compiling takes: the time, and the processors' time."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Spent:
    """Seconds by the clock and of the processors; both are 0 until the block ends."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextlib.contextmanager
def measured() -> Iterator[Spent]:
    """What the block takes, compilers in this process and in its children included."""
    spent = Spent()
    start, cpu = time.perf_counter(), _cpu_seconds()
    yield spent
    spent.seconds, spent.cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Of this process, where NVRTC works, and of the children that it waited for, as nvcc."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)
