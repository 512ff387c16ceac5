"""Packages that hide one another: the copy that is imported is not the one that was installed."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse


def shadowed(group: str) -> list[str]:
    """One sentence for each package of attnhub or of a plugin (entry points in ``group``) at fault.

    Either two copies are installed, of which the path decides, or the module that Python finds
    does not belong to the installed copy, as in a folder that holds another checkout.
    """
    found: dict[str, list[metadata.Distribution]] = {}
    for distribution in metadata.distributions():
        if _packages(distribution, group):
            found.setdefault(distribution.name, []).append(distribution)
    return [
        fault
        for copies in found.values()
        for fault in (*_hidden_copies(copies), *_foreign_modules(copies[0], group))
    ]


def _packages(distribution: metadata.Distribution, group: str) -> list[str]:
    """The top-level packages to look at: ``attnhub`` itself and those that plugins live in."""
    plugins = {e.module.partition(".")[0] for e in distribution.entry_points if e.group == group}
    return sorted(plugins | ({"attnhub"} if distribution.name == "attnhub" else set()))


def _hidden_copies(copies: list[metadata.Distribution]) -> list[str]:
    first, *others = copies
    where = Path(str(first.locate_file(""))).resolve()
    faults = []
    for other in others:
        place = Path(str(other.locate_file(""))).resolve()
        if place != where:  # the same folder may be on the path twice
            faults.append(
                f"{first.name} {first.version} in {where} hides {other.version} in {place}; "
                "uninstall one of them"
            )
    return faults


def _foreign_modules(distribution: metadata.Distribution, group: str) -> list[str]:
    faults = []
    for package in _packages(distribution, group):
        spec = importlib.util.find_spec(package)
        home = _home(distribution, package)
        if spec is None or spec.origin is None or home is None:
            continue
        origin = Path(spec.origin).resolve()
        if not origin.is_relative_to(home):
            faults.append(
                f"{package} is imported from {origin.parent}, but {distribution.name} "
                f"{distribution.version} is installed from {home}; run elsewhere, or install that"
            )
    return faults


def _home(distribution: metadata.Distribution, package: str) -> Path | None:
    """The folder that the installed package's modules are in, if the installer recorded it."""
    for file in distribution.files or ():
        if file.as_posix() == f"{package}/__init__.py":
            return Path(str(file.locate())).resolve().parent
    recorded = distribution.read_text("direct_url.json")
    url = urlparse(json.loads(recorded)["url"]) if recorded else None
    return Path(unquote(url.path)).resolve() if url and url.scheme == "file" else None
