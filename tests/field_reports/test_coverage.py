"""``docs/field_reports.md`` names tests that exist, and leaves no report without an answer."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from typing import NamedTuple

import pytest

from tests.unit.repo_tree import ROOT

_DOCUMENT = ROOT / "docs" / "field_reports.md"
_TEST = re.compile(r"`(?P<file>(?:plugins/\w+/)?tests/[\w/]+\.py)::(?P<name>test_\w+)`")
_LEFT = re.compile(r"(?:later: attnhub[-.]\w|out of scope: \w+ ).*")


class Row(NamedTuple):
    """One line of a table."""

    reports: str
    gist: str
    kind: str
    covered: str


def _rows() -> list[Row]:
    lines = _DOCUMENT.read_text(encoding="utf-8").splitlines()
    tables = [line for line in lines if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in tables]
    return [Row(*c) for c in cells if c[0] not in ("reports", "---")]


ROWS = _rows()


@functools.cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[row.reports for row in ROWS])
def test_a_report_is_covered_or_says_what_is_left(row: Row) -> None:
    assert all(row), "no cell may be empty"
    assert len(row.gist.split()) <= 12
    for answer in row.covered.split("<br>"):
        named = _TEST.fullmatch(answer)
        if named is None:
            assert _LEFT.fullmatch(answer), answer
        else:
            assert named["name"] in _tests_of(named["file"])


def test_no_report_is_listed_twice() -> None:
    assert len(ROWS) > 130
    twice = [name for name, n in Counter(row.reports for row in ROWS).items() if n > 1]
    assert twice == []


def test_every_test_here_answers_a_report_or_guards_the_others() -> None:
    """A test that no row names has lost its reason, unless it checks the tests themselves."""
    named = {m["name"] for row in ROWS for m in _TEST.finditer(row.covered)}
    guards = {
        "test_every_output_argument_is_in_the_table",
        "test_every_public_parameter_is_annotated",
        "test_explaining_opens_manifests_and_no_kernels",
        "test_the_search_knows_templates",
        "test_the_search_spares_sentences",
    }
    files = [
        f.relative_to(ROOT).as_posix()
        for f in _DOCUMENT.parents[1].glob("tests/field_reports/test_*.py")
    ]
    here = {name for f in files if not f.endswith("test_coverage.py") for name in _tests_of(f)}
    assert {name for name in here if name.startswith("test_")} - named == guards


def test_every_test_of_a_plugin_answers_a_report() -> None:
    named = {(m["file"], m["name"]) for row in ROWS for m in _TEST.finditer(row.covered)}
    files = [
        f.relative_to(ROOT).as_posix() for f in ROOT.glob("plugins/*/tests/test_field_reports*.py")
    ]
    assert files
    here = {(f, name) for f in files for name in _tests_of(f) if name.startswith("test_")}
    assert here - named == set()
