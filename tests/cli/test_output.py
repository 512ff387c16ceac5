from __future__ import annotations

import io
import sys

import pytest

from attnhub.cli import output
from attnhub.cli.output import Grid


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _grid() -> Grid:
    grid = Grid(title="things", header=("name", "n", "why"))
    grid.add("a", "10", "first\nsecond")
    grid.add("long name", "2", "[op=]name", style="red")
    return grid


def test_plain_text_lines_up_and_unfolds_cells() -> None:
    assert str(_grid()).splitlines() == [
        "things",
        "  name       n   why",
        "  a          10  first",
        "                 second",
        "  long name  2   [op=]name",
    ]


def test_a_terminal_gets_a_table_and_no_cell_is_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    _grid().show()
    text = screen.getvalue()
    assert "[op=]name" in text
    assert [line.split()[-1] for line in text.splitlines() if line.split()[:1] == ["a"]] == [
        "first"
    ]
    assert max(map(len, text.splitlines())) <= 40


def test_what_others_print_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with output.quiet():
        print("noise")  # noqa: T201
    output.document({"a": 1})
    out, err = capsys.readouterr()
    assert (out, err) == ('{\n  "a": 1\n}\n', "noise\n")
