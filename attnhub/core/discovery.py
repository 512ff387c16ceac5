"""From installed packages to the shared registry: entry points of the group ``attnhub``."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from attnhub.core.env import environment
from attnhub.core.registry import Registry
from attnhub.errors import InvalidArgument

GROUP = "attnhub"
BUILTIN = "attnhub.backends.manifest"

_MENTION = f"[{GROUP}]".encode()

#: In a folder's name, what follows that of the project.
_VERSION = re.compile(r"-\d.*")
_SUFFIXES = {"dist-info", "egg-info"}
_SEPARATORS = re.compile(r"[-_.]+")

_lock = threading.Lock()
_default: Registry | None = None


def listed() -> tuple[frozenset[str], bool]:
    """The plugins that ``ATTNHUB_PLUGINS`` names, and whether these are denied.

    Raises:
        InvalidArgument: some are denied and the first is not.
    """
    text = environment().plugins.strip()
    items = [item.strip() for item in text.split(",")]
    denied = text.startswith("-")
    if not denied and any(item.startswith("-") for item in items):
        raise InvalidArgument(
            f"ATTNHUB_PLUGINS={text!r} names plugins to load and plugins to skip: give either, as "
            "'one,two' or '-one,two'"
        )
    return frozenset(item.lstrip("- ") for item in items) - {""}, denied


def selected(name: str) -> bool:
    """Whether ``ATTNHUB_PLUGINS`` lets a plugin be opened at all."""
    names, denied = listed()
    return not names or (name in names) is not denied


def register_builtin(registry: Registry) -> None:
    """Register AttnHub's own ops and backends, and no plugin."""
    registry.register(importlib.import_module(BUILTIN), "attnhub")


def entry_points() -> list[metadata.EntryPoint]:
    """The plugins of all installed packages, by name.

    As ``importlib.metadata.entry_points(group=GROUP)`` finds them, from folders, eggs, archives and
    whatever finders are installed. That one parses all that hundreds of packages say, for a few
    lines of it: on some machines more than 100 ms. And of a folder ``my-a.egg-info`` it takes the
    project to be ``my``, so that ``my-b`` would be a second installation of it.
    """
    found = [entry for d in _distributions() for entry in d.entry_points if entry.group == GROUP]
    return sorted(found, key=lambda entry: entry.name)


def _distributions() -> Iterator[metadata.Distribution]:
    """Those whose entry points mention the group; of two installations of a project, the first."""
    seen: set[str] = set()
    for finder in sys.meta_path:
        if finder is PathFinder:
            for place in sys.path:
                yield from _at(place, seen)
        # The package importlib_metadata puts a finder there that looks where we just did.
        elif type(finder).__module__.partition(".")[0] != "importlib_metadata":
            find = getattr(finder, "find_distributions", None)
            if find is not None:
                yield from _new(find(metadata.DistributionFinder.Context()), seen)


def _at(place: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """The installations in one place of the path."""
    try:
        with os.scandir(place or os.curdir) as inside:
            infos = [(entry.path, project) for entry in inside if (project := _project(entry))]
    except OSError:  # an archive, perhaps
        context = metadata.DistributionFinder.Context(path=[place])
        yield from _new(metadata.MetadataPathFinder.find_distributions(context), seen)
        return
    for info, project in infos:
        if _is_first(_VERSION.sub("", project), seen) and _mentions_us(f"{info}/entry_points.txt"):
            yield metadata.Distribution.at(info)


def _project(entry: os.DirEntry[str]) -> str:
    """Whose metadata a folder holds, and its version, perhaps; empty: it holds none."""
    stem, _, suffix = entry.name.rpartition(".")
    if stem and suffix.lower() in _SUFFIXES:
        return stem
    if entry.name.upper() != "EGG-INFO":
        return ""
    folder = Path(entry.path).parent
    return folder.stem if folder.suffix.lower() == ".egg" else ""


def _mentions_us(file: str) -> bool:
    # Hundreds of packages are asked: a Path and a buffer for each would cost three times as much.
    try:
        with io.FileIO(file) as opened:
            return _MENTION in opened.read()
    except OSError:
        return False


def _new(found: Iterable[metadata.Distribution], seen: set[str]) -> Iterator[metadata.Distribution]:
    for distribution in found:
        is_first = _is_first(distribution.metadata["Name"] or "", seen)
        if is_first and _MENTION in (distribution.read_text("entry_points.txt") or "").encode():
            yield distribution


def _is_first(project: str, seen: set[str]) -> bool:
    """Whether a project was not met before; its name is compared as PEP 503 says."""
    name = _SEPARATORS.sub("-", project).lower()
    is_first = name not in seen
    seen.add(name)
    return is_first


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
