"""The command line that benchmark scripts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing import results, script

ABOUT = "Times nothing.\n\nAt length."


def _measure(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    yield here.row("nothing", f"on {device.type}", "time", 12.5, "us")


def _never(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    raise AssertionError


def test_rows_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--out", str(tmp_path), "--commit", "abc1234"]
    script.run(_measure, ABOUT, arguments=arguments)
    [file] = tmp_path.iterdir()
    printed = capsys.readouterr().out
    assert "on cpu" in printed
    assert printed.endswith(f"wrote {file}\n")
    [row] = results.read([tmp_path])
    assert (row.suite, row.case, row.value, row.gpu) == ("nothing", "on cpu", 12.5, "cpu")
    assert row.commit == "abc1234"


def test_where_no_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script.run(_measure, ABOUT, arguments=["--device", "cpu"])
    assert "wrote" not in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    script.run(_measure, ABOUT, out=Path("default"), arguments=["--device", "cpu"])
    assert "wrote default/nothing-" in capsys.readouterr().out


def test_an_unusable_folder_is_found_before_measuring(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidArgument, match="cannot be written to as a folder"):
        script.run(_never, ABOUT, arguments=["--device", "cpu", "--out", str(file)])


def test_help_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.run(_never, ABOUT, arguments=["--help"])
    printed = capsys.readouterr().out
    assert "Times nothing." in printed
    assert "At length." not in printed
