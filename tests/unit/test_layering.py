"""Which package may import which. The arrows run one way, and imports are read, not run.

    integrations, cli -> families -> variant, core        backends -> families        kernels -> jit
    testing and plugins use the public surface only

Imports under `TYPE_CHECKING` and inside functions count too: a dependency of ideas is one. What
core needs from above it finds by name, at run time, through the registry.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.repo_tree import ROOT, python_files

FAMILIES = frozenset(
    "attn mla cascade page rope norm activation sampling quantization gemm".split()
)
_BELOW_FAMILIES = frozenset({"errors", "core", "variant"})

# Area -> areas it may import, besides itself. "attnhub" is the root package: its public names.
MAY_IMPORT = {
    "attnhub": _BELOW_FAMILIES | FAMILIES | {"plugin"},
    "plugin": _BELOW_FAMILIES | {"jit", "kernels"},
    "errors": frozenset({"core"}),  # an error carries the decision and reasons it tells of
    "core": frozenset({"errors"}),
    "variant": frozenset({"errors", "core"}),
    "jit": frozenset({"errors", "core"}),
    "kernels": frozenset({"errors", "core", "jit"}),
    "backends": _BELOW_FAMILIES | FAMILIES | {"plugin"},
    "testing": FAMILIES | {"attnhub", "plugin", "errors", "variant"},
    "integrations": _BELOW_FAMILIES | FAMILIES | {"attnhub"},
    "__main__": frozenset({"cli"}),
    "cli": _BELOW_FAMILIES | FAMILIES | {"attnhub", "plugin", "jit", "testing"},
} | dict.fromkeys(FAMILIES, _BELOW_FAMILIES)

# (family, the family it uses): the reason. No other family may be imported by a family.
FAMILY_USES = {
    ("attn", "rope"): "attention turns queries and keys by the rule that rope states",
    ("cascade", "attn"): "each level of a cascade is a BatchAttention",
    ("cascade", "page"): "levels are compared by the lengths that page tables say",
    ("page", "attn"): "appends go by attention's page tables",
    ("mla", "attn"): "latent attention takes attention's page tables and is its one-KV-head case",
}

# What a plugin may name; its tests and benchmarks also use attnhub.testing.
PLUGIN_SURFACE = frozenset({"attnhub", "attnhub.plugin", "attnhub.errors"}) | {
    f"attnhub.{family}" for family in FAMILIES
}

# A plugin's manifest is loaded at every start, so these must not come with it.
HEAVY = ("torch", "jinja2", "triton", "attnhub.jit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, as an absolute dotted name, and where it was imported."""

    target: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def _is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()


def _targets(node: ast.AST, package: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        anchor = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*anchor, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if _is_module(inner) else base


def imports_of(file: Path) -> list[Import]:
    """Every import statement of a file, relative ones made absolute."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=str(file))
    package = list(file.parent.parts)
    return [
        Import(target=target, file=file, line=node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for target in _targets(node, package)
    ]


def _area(dotted: str) -> str:
    """`attnhub.core.device` is in "core"; `attnhub` and a name it exports are in "attnhub"."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and _is_module(".".join(parts[:2])) else "attnhub"


def _module(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def _inner_imports() -> Iterator[tuple[str, Import]]:
    """Each import of attnhub by attnhub, with the area of the file it stands in."""
    for file in python_files("attnhub"):
        for found in imports_of(file):
            if found.target.split(".")[0] == "attnhub":
                yield _area(_module(file)), found


def test_every_area_has_a_rule() -> None:
    areas = {_area(_module(file)) for file in python_files("attnhub")}
    assert areas <= MAY_IMPORT.keys(), "state in MAY_IMPORT what these may import"


def test_arrows_run_one_way() -> None:
    wrong = [
        f"{found} (attnhub.{area} may import {sorted(MAY_IMPORT[area])})"
        for area, found in _inner_imports()
        if _area(found.target) not in MAY_IMPORT[area] | {area}
        and (area, _area(found.target)) not in FAMILY_USES
    ]
    assert not wrong, "\n".join(wrong)


def test_family_uses_are_used() -> None:
    seen = {(area, _area(found.target)) for area, found in _inner_imports()}
    assert FAMILY_USES.keys() <= seen, "remove what no family needs any more"


def test_testing_uses_public_modules_only() -> None:
    wrong = [
        str(found)
        for area, found in _inner_imports()
        if area == "testing"
        and any(part.startswith("_") for part in found.target.split("."))
        and not found.target.startswith("attnhub.testing.")
    ]
    assert not wrong, "\n".join(wrong)


def _plugin_fault(found: Import, own: str) -> str | None:
    top, *rest = found.target.split(".")
    if top.startswith("attnhub_") and top != own:
        return "a plugin never imports another"
    if top != "attnhub" or found.target in PLUGIN_SURFACE:
        return None
    for_tests = {"tests", "benchmarks"} & set(found.file.parts)
    if rest[0] == "testing":
        return None if for_tests else "attnhub.testing is for a plugin's tests and benchmarks"
    return f"a plugin may import {sorted(PLUGIN_SURFACE)}"


def test_plugins_use_the_public_door() -> None:
    wrong = []
    for file in python_files("plugins"):
        packages = [p.parent.name for p in (ROOT / Path(*file.parts[:2])).glob("*/__init__.py")]
        own = next((name for name in packages if name.startswith("attnhub_")), "")
        faults = ((found, _plugin_fault(found, own)) for found in imports_of(file))
        wrong += [f"{found}: {fault}" for found, fault in faults if fault]
    assert not wrong, "\n".join(wrong)


def _entry_points() -> Iterator[str]:
    """The modules that plugins in this repository name in the entry point group `attnhub`."""
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    for pyproject in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        for target in project.get("entry-points", {}).get("attnhub", {}).values():
            yield target.split(":")[0]


def _loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    path = os.pathsep.join([str(ROOT), *(str(p) for p in ROOT.glob("plugins/*"))])
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    return set(out.stdout.split())


@pytest.mark.parametrize("module", ["attnhub", "attnhub.plugin"])
def test_import_is_light(module: str) -> None:
    if not _is_module(module) or not (ROOT / "attnhub/__init__.py").is_file():
        pytest.skip(f"{module} is not written yet")
    assert _loaded_by(module) == set()


def test_plugin_manifests_are_light() -> None:
    heavy = {module: loaded for module in _entry_points() if (loaded := _loaded_by(module))}
    assert heavy == {}
