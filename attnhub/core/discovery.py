"""From installed packages to the shared registry: entry points of the group ``attnhub``."""

from __future__ import annotations

import importlib
import threading
from importlib import metadata

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


def discover(registry: Registry) -> None:
    """Register the built-in backends and every installed plugin, one by one, in name order."""
    register_builtin(registry)
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda e: e.name):
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
