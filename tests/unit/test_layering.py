"""Which package may import which. The arrows run one way, and imports are read, not run.

    integrations, cli -> families -> variant, core   backends -> families   kernels -> jit, variant
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
    # What planners need of the two families whose plans hold a batch, and the frequencies of rope,
    # which are the model's; imported when named.
    "plugin": _BELOW_FAMILIES | {"attn", "mla", "rope", "jit", "kernels"},
    "errors": frozenset({"core"}),  # an error carries the decision and reasons it tells of
    "core": frozenset({"errors"}),
    "variant": frozenset({"errors", "core"}),
    "jit": frozenset({"errors", "core"}),
    "kernels": frozenset({"errors", "core", "jit", "variant"}),
    "include": frozenset(),  # headers, and what says where they are
    "backends": _BELOW_FAMILIES | FAMILIES | {"plugin"},
    "testing": FAMILIES | {"attnhub", "plugin", "errors", "variant", "jit"},
    "integrations": _BELOW_FAMILIES | FAMILIES | {"attnhub"},
    "__main__": frozenset({"cli"}),
    "cli": _BELOW_FAMILIES | FAMILIES | {"attnhub", "plugin", "jit", "testing"},
} | dict.fromkeys(FAMILIES, _BELOW_FAMILIES)

# (family, the family it uses): the reason. No other family may be imported by a family.
FAMILY_USES = {
    ("activation", "quantization"): "a gated activation stores FP8 as quantization does",
    ("attn", "rope"): "attention turns queries and keys by the rule that rope states",
    ("cascade", "attn"): "each level of a cascade is a BatchAttention",
    ("cascade", "page"): "levels are compared by the lengths that page tables say",
    ("page", "attn"): "appends go by attention's page tables and store by its scales",
    ("page", "rope"): "a fused append turns queries and keys by the rule that rope states",
    ("page", "quantization"): "a fused append stores FP8 as quantization does",
    ("mla", "attn"): "latent attention takes attention's page tables and is its one-KV-head case",
}

# The door for plugins. Their tests and benchmarks also call the public API, and attnhub.testing.
DOOR = "attnhub.plugin"
PUBLIC = frozenset({"attnhub", "attnhub.errors", *(f"attnhub.{family}" for family in FAMILIES)})

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
    if top != "attnhub" or found.target == DOOR:
        return None
    if not {"tests", "benchmarks"} & set(found.file.parts):
        return f"a plugin imports {DOOR} and nothing else of attnhub"
    if found.target in PUBLIC or rest[:1] == ["testing"]:
        return None
    return f"a plugin's tests may import {DOOR}, attnhub.testing and {sorted(PUBLIC)}"


def plugin_roots() -> list[Path]:
    """The folders of the plugins in this repository: those whose package has an entry point."""
    found = [p for g in ("plugins", "examples") for p in ROOT.glob(f"{g}/*/pyproject.toml")]
    own = [p for p in found if "entry-points.attnhub]" in p.read_text(encoding="utf-8")]
    return sorted(p.parent.relative_to(ROOT) for p in own)


def test_plugins_use_the_public_door() -> None:
    wrong, seen = [], set()
    for root in plugin_roots():
        packages = [p.parent.name for p in (ROOT / root).glob("*/__init__.py")]
        own = next((name for name in packages if name.startswith("attnhub_")), "")
        files = [f for f in python_files(root.parts[0]) if f.is_relative_to(root)]
        seen |= {*files}
        faults = ((found, _plugin_fault(found, own)) for f in files for found in imports_of(f))
        wrong += [f"{found}: {fault}" for found, fault in faults if fault]
    assert not wrong, "\n".join(wrong)
    assert len([f for f in seen if f.name == "manifest.py"]) >= 1, "it looked at no plugin at all"


@pytest.mark.parametrize(
    ("target", "file", "fits"),
    [
        pytest.param("attnhub.plugin", "planner.py", True, id="the door"),
        pytest.param("attnhub", "planner.py", False, id="a name of the root, at run time"),
        pytest.param("attnhub.core.check", "planner.py", False, id="behind the door"),
        pytest.param("attnhub.testing.faults", "planner.py", False, id="testing, at run time"),
        pytest.param("attnhub_other.x", "planner.py", False, id="another plugin"),
        pytest.param("attnhub_mine.x", "planner.py", True, id="itself"),
        pytest.param("attnhub", "tests/test_x.py", True, id="the public API, in a test"),
        pytest.param("attnhub.testing.faults", "tests/test_x.py", True, id="testing, in a test"),
        pytest.param("attnhub.core.check", "tests/test_x.py", False, id="core, in a test"),
    ],
)
def test_the_rule_for_plugins_tells_right_from_wrong(target: str, file: str, *, fits: bool) -> None:
    found = Import(target=target, file=Path("plugins/mine") / file, line=1)
    assert (_plugin_fault(found, "attnhub_mine") is None) is fits


def _entry_points() -> Iterator[str]:
    """The modules that plugins in this repository name in the entry point group `attnhub`."""
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    for root in plugin_roots():
        project = tomllib.loads((ROOT / root / "pyproject.toml").read_text("utf-8"))["project"]
        for target in project.get("entry-points", {}).get("attnhub", {}).values():
            yield target.split(":")[0]


def _loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    path = os.pathsep.join([str(ROOT), *(str(ROOT / p) for p in plugin_roots())])
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
    heavy = {module: _loaded_by(module) for module in _entry_points()}
    assert heavy
    assert not any(heavy.values()), heavy
