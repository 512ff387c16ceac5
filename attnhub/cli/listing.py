"""``attnhub list``: which backends serve which ops, from which plugin, and what is missing."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnhub.cli import output

if TYPE_CHECKING:
    from attnhub.core.backend import Backend
    from attnhub.core.registry import Registry


def list_backends(
    op: Annotated[str, typer.Option(help="Only ops that match this glob, as in 'norm.*'.")] = "*",
    as_json: output.Json = False,
) -> None:
    """Print every op, its backends and their plugins, and plugins that could be installed."""
    import warnings

    from attnhub.core import discovery
    from attnhub.errors import PluginWarning, UnknownName

    with warnings.catch_warnings(), output.quiet():
        warnings.simplefilter("ignore", PluginWarning)  # a row says the same
        registry = discovery.default()
    ops = [name for name in sorted(registry.ops) if fnmatch.fnmatchcase(name, op)]
    if not ops:
        raise UnknownName("op", op, registry.ops)
    found = {
        "ops": [_op(registry, name) for name in ops],
        "plugins": plugins(registry),
        "not_installed": _not_installed(registry, None if op == "*" else ops),
    }
    if as_json:
        output.document(found)
    else:
        _show(found)


def runs_on(backend: Backend) -> list[str]:
    """Kinds of devices with the architectures accepted: ``["cpu", "cuda sm >= 80"]``."""
    from attnhub.core.constraints import AnyValue

    found = [
        device if device != "cuda" or sheet.sm == AnyValue() else f"cuda sm {sheet.sm}"
        for sheet in backend.sheets()
        for device in sheet.devices
    ]
    return list(dict.fromkeys(found))


def plugins(registry: Registry) -> list[dict[str, Any]]:
    """Every plugin, broken ones with their ``error``; the built-in one has attnhub's version."""
    import attnhub

    return [
        {
            "plugin": info.name,
            "version": attnhub.__version__ if info.name == "attnhub" else info.version,
            "load_ms": round(info.load_ms, 1),
            "backends": list(info.backends),
            "error": info.error,
        }
        for info in registry.plugins.values()
    ]


def show_plugins(found: list[dict[str, Any]]) -> None:
    """Print what :func:`plugins` returned."""
    grid = output.Grid(title="plugins", header=("plugin", "version", "loaded in", "status"))
    for p in found:
        loaded = f"{p['load_ms']:.1f} ms" if p["load_ms"] else "-"
        status = f"broken: {p['error']}" if p["error"] else "ready"
        grid.add(
            p["plugin"], p["version"] or "-", loaded, status, style="red" if p["error"] else ""
        )
    grid.show()


def _op(registry: Registry, name: str) -> dict[str, Any]:
    op = registry.op(name)
    backends = [
        {"backend": b.name, "plugin": b.plugin, "runs_on": runs_on(b)}
        for b in registry.backends(name)
    ]
    return {"op": name, "summary": op.summary, "compare": op.compare, "backends": backends}


def _not_installed(registry: Registry, ops: list[str] | None) -> list[dict[str, Any]]:
    """Known plugins that are absent, and which of the ``ops`` (None: any) they would serve."""
    from attnhub.core.known_plugins import known_plugins

    installed = registry.names()
    found = []
    for known in known_plugins().values():
        patterns = [p for p in known.ops if ops is None or fnmatch.filter(ops, p)]
        if patterns and known.backend not in installed:
            found.append(
                {
                    "backend": known.backend,
                    "package": known.package,
                    "ops": patterns,
                    "hint": known.install.removeprefix("not installed: "),
                }
            )
    return found


def _show(found: dict[str, Any]) -> None:
    grid = output.Grid(title="ops", header=("op", "backend", "plugin", "runs on"))
    for op in found["ops"]:
        name = op["op"]
        for b in op["backends"]:
            grid.add(name, b["backend"], b["plugin"], ", ".join(b["runs_on"]))
            name = ""  # once a group
        if not op["backends"]:
            grid.add(name, "none", "-", "-", style="yellow")
    grid.show()
    output.line()
    show_plugins(found["plugins"])
    if not found["not_installed"]:
        return
    output.line()
    grid = output.Grid(title="not installed", header=("backend", "ops", "what to do"))
    for k in found["not_installed"]:
        grid.add(k["backend"], "\n".join(k["ops"]), k["hint"], style="dim")
    grid.show()
