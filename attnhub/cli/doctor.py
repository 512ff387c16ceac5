"""``attnhub doctor``: what is installed, what decides, and what is broken."""

from __future__ import annotations

from typing import Any

import typer

from attnhub.cli import listing, output


def doctor(as_json: output.Json = False) -> None:
    """Print versions, devices, plugins and overrides; exits with 1 if something is broken."""
    from attnhub.cli import diagnosis

    with output.quiet():
        found = diagnosis.diagnose()
    if as_json:
        output.document(found)
    else:
        _show(found)
    if found["problems"]:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    for grid in (_versions(found["versions"]), _devices(found["devices"])):
        grid.show()
        output.line()
    listing.show_plugins(found["plugins"])
    output.line()
    _compilers(found["compilers"]).show()
    output.line(f"  {_driver(found['driver'])}")
    for store in found["prebuilt"]:
        archs = f" for {', '.join(store['archs'])}" if store["archs"] else ""
        output.line(
            f"  {store['kernels']} kernels{archs}, built ahead of time, in {store['folder']}"
        )
    output.line(f"  kernels are kept in {found['cache']}")
    for grid in (_overrides(found["overrides"]), _environment(found["environment"])):
        output.line()
        grid.show()
    output.line()
    if not found["problems"]:
        output.line("nothing is broken")
        return
    grid = output.Grid(title="broken", header=("what", "why"))
    for problem in found["problems"]:
        grid.add(problem["what"], problem["why"], style="red")
    grid.show()


def _versions(versions: dict[str, str]) -> output.Grid:
    grid = output.Grid(title="versions", header=("package", "version"))
    for name, version in versions.items():
        grid.add(name, version)
    return grid


def _devices(devices: list[dict[str, Any]]) -> output.Grid:
    grid = output.Grid(title="devices", header=("device", "arch", "kernels for", "SMs", "name"))
    for d in devices:
        made_for = d["compiled_for"] or "-"
        grid.add(d["device"], d["arch"], made_for, str(d["num_sms"] or "-"), d["name"])
    return grid


def _compilers(compilers: list[dict[str, str]]) -> output.Grid:
    title = "compilers of CUDA kernels, the first usable one is taken"
    grid = output.Grid(title=title, header=("compiler", "version", "where"))
    for c in compilers:
        where = f"{c['path']} ({c['how']})" if c["path"] else c["why"]
        grid.add(c["name"], c["version"] or "-", where)
    return grid


def _driver(driver: dict[str, str]) -> str:
    if driver["why"]:
        return driver["why"]
    own = f", version {driver['version']}" if driver["version"] else ""
    return f"driver: runs CUDA {driver['cuda']} and older{own}"


def _overrides(overrides: list[dict[str, str]]) -> output.Grid:
    grid = output.Grid(title="overrides in force", header=("scope", "ops", "rule"))
    for o in overrides:
        grid.add(o["scope"], o["op"], f"{o['mode']} {o['backend']}")
    if not overrides:
        grid.add("-", "-", "none")
    return grid


def _environment(variables: list[dict[str, Any]]) -> output.Grid:
    grid = output.Grid(title="environment", header=("variable", "value", "meaning"))
    for v in variables:
        style = "" if v["known"] else "red"
        grid.add(v["name"], v["value"] or "-", v["meaning"], style=style)
    return grid
