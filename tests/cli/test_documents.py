"""Documents that repeat what the code says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnhub.cli.suites import overhead
from attnhub.core.env import VARIABLES
from tests.unit.repo_tree import ROOT

_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def _with_table(file: Path, rows: list[tuple[str, ...]]) -> str:
    """The text of ``file`` with ``rows`` between its marks; the first row is the header."""
    head, _, rest = file.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    header, *lines = [f"| {' | '.join(row)} |\n" for row in rows]
    rule = f"|{' --- |' * len(rows[0])}\n"
    return "".join([head, _BEGIN, header, rule, *lines, _END, tail])


def test_every_variable_is_documented(golden: Callable[[Path, str], None]) -> None:
    file = ROOT / "docs/environment.md"
    rows = [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()]
    golden(file, _with_table(file, [("variable", "meaning"), *rows]))


def test_every_budget_is_documented(golden: Callable[[Path, str], None]) -> None:
    file = ROOT / "docs/benchmarking.md"
    rows = [(b.case, f"{b.limit:g} {b.unit}") for b in overhead.BUDGETS]
    golden(file, _with_table(file, [("figure", "at most"), *rows]))
