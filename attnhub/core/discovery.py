"""From installed packages to the shared registry: entry points of the group ``attnhub``."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from attnhub.core.env import environment
from attnhub.core.registry import Registry

GROUP = "attnhub"
BUILTIN = "attnhub.backends.manifest"

_lock = threading.Lock()
_default: Registry | None = None


def selected(name: str) -> bool:
    """Whether ``ATTNHUB_PLUGINS`` lets a plugin be opened at all."""
    listed = environment().plugins
    if not listed:
        return True
    denied = listed.startswith("-")
    inside = name in {item.strip() for item in listed.lstrip("-").split(",")}
    return inside is not denied


def register_builtin(registry: Registry) -> None:
    """Register AttnHub's own ops and backends, and no plugin."""
    registry.register(importlib.import_module(BUILTIN), "attnhub")


def entry_points() -> list[metadata.EntryPoint]:
    """The plugins of all installed packages, by name.

    What ``importlib.metadata.entry_points(group=GROUP)`` finds. That one parses all that hundreds
    of packages say, for a few lines of it: on some machines more than 100 ms.
    """
    found = [entry for d in _distributions() for entry in d.entry_points if entry.group == GROUP]
    return sorted(found, key=lambda entry: entry.name)


def _distributions() -> Iterator[metadata.Distribution]:
    """Those whose entry points mention the group, and any that are not in plain folders."""
    seen: set[str] = set()
    for place in sys.path:
        try:
            inside = list(Path(place).iterdir())
        except OSError:  # an archive, perhaps
            yield from metadata.distributions(path=[place])
            continue
        for info in inside:
            project = info.name.partition("-")[0].lower()
            # Of two installations of a package the first on the path counts.
            if info.suffix not in {".dist-info", ".egg-info"} or project in seen:
                continue
            seen.add(project)
            with contextlib.suppress(OSError, UnicodeError):
                if f"[{GROUP}]" in (info / "entry_points.txt").read_text(encoding="utf-8"):
                    yield metadata.Distribution.at(info)


def discover(registry: Registry) -> None:
    """Register the built-in backends and every installed plugin, one by one, in name order."""
    register_builtin(registry)
    for entry in entry_points():
        if selected(entry.name):
            registry.load_entry_point(entry)
    registry.check_ops()


def default() -> Registry:
    """The registry of this process, filled on first use."""
    global _default  # noqa: PLW0603 - one registry a process, filled once
    if _default is None:
        with _lock:
            if _default is None:
                registry = Registry()
                discover(registry)
                _default = registry
    return _default


def replace_default(registry: Registry | None) -> Registry | None:
    """Swap the shared registry (None: discover anew on next use) and return the old one."""
    global _default
    old, _default = _default, registry
    return old
