"""How many compilers may run at once: as many as cores and memory allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: What one compiler may take. Kernels of the house style take 140 to 220 MB; the rest is reserve.
JOB_BYTES = 1 << 30


def limit(wanted: int | None = None, *, root: Path = Path("/")) -> int:
    """The number of parallel compilers, at least one.

    Args:
        wanted: the caller's own bound; None for none.
        root: where ``proc`` and ``sys`` lie; tests give a folder of their own.
    """
    bounds = [cores(root=root)]
    if (memory := available_memory(root=root)) is not None:
        bounds.append(memory // JOB_BYTES)
    if wanted is not None:
        bounds.append(wanted)
    return max(1, min(bounds))


def cores(*, root: Path = Path("/")) -> int:
    """The cores that this process may use: its affinity and the quota of its control group."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    for group in _groups(root):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            count = min(count, max(1, int(quota) // int(period)))
    return count


def available_memory(*, root: Path = Path("/")) -> int | None:
    """Bytes that can be used without swapping; None where the system does not say."""
    lines = _read(root / "proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for group in _groups(root):
        bound = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if bound.isdigit() and used.isdigit():
            # Pages of files that nobody uses now are given back before anyone is killed.
            free = int(bound) - int(used) + _inactive_files(group)
            found.append(max(0, free))
    return min(found, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups, innermost first, of both versions."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        inner = base / path.lstrip("/")
        # In a container the group is often mounted as the root itself.
        yield from dict.fromkeys([inner, *(p for p in inner.parents if p.is_relative_to(base))])


def _inactive_files(group: Path) -> int:
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
