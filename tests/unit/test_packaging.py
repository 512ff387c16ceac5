"""What the package declares is what it is: its version, and what it imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnhub
from tests.unit.repo_tree import ROOT, python_files

# Imported inside integrations and suites only, by those who have them: no extra installs them.
OPTIONAL = {"triton", "flashinfer", "flash_attn", "vllm", "sglang", "pytest"}


def _project() -> dict[str, object]:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", r)[0].replace("-", "_") for r in requirements}


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _without_type_checking(node)


def _imported(file: Path) -> set[str]:
    found = set()
    for node in _without_type_checking(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


def test_the_version_is_that_of_the_package() -> None:
    assert _project()["version"] == attnhub.__version__


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    project = _project()
    needed = _names(project["dependencies"])
    extras = {n for r in project["optional-dependencies"].values() for n in _names(r)}
    imported = {name for file in python_files("attnhub") for name in _imported(file)}
    theirs = imported - sys.stdlib_module_names - {"attnhub"}
    assert theirs - needed - extras - OPTIONAL == set()
    assert needed - theirs == set()


def test_the_module_form_of_the_command_line_runs_only_when_asked() -> None:
    """Tools that import every module of a package must not start a program."""
    import importlib

    importlib.import_module("attnhub.__main__")
