"""`attnhub bench report`, on results of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnhub.testing.results import Environment, write
from tests.cli.conftest import Cli

EARLY, LATE = "2026-11-30T09:00:00Z", "2026-11-30T17:00:00Z"


def _write(folder: Path, date: str, value: float, *, commit: str = "c", **names: str) -> None:
    versions = {"cpu": names.get("cpu", "Xeon"), "torch": "2.13.0"}
    here = Environment(gpu="cpu", versions=versions, commit=commit, date=date)
    suite = names.get("suite", "decode")
    write([here.row(suite, "B1", "time", value, "us", peers={"other": 30.0})], folder)


def test_report_shows_the_latest_of_each_case(cli: Cli, tmp_path: Path) -> None:
    """By the time of day: the names of the files are in another order."""
    _write(tmp_path, LATE, 15.0, commit="after")
    _write(tmp_path, EARLY, 20.0, commit="before")
    result = cli("bench", "report", str(tmp_path), "--json")
    assert [(r["value"], r["date"]) for r in result.json["rows"]] == [(15.0, LATE)]
    lines = cli("bench", "report", str(tmp_path)).out.splitlines()
    assert lines[0] == "decode on Xeon, 2026-11-30, after, torch 2.13.0"
    assert lines[2].split() == ["B1", "time", "15", "us", "30", "(2.00x)"]


def test_report_draws_a_chart_of_each_suite(cli: Cli, tmp_path: Path) -> None:
    _write(tmp_path / "results", EARLY, 20.0)
    charts = tmp_path / "charts"
    words = (str(tmp_path / "results"), "--png", str(charts), "--json")
    result = cli("bench", "report", *words)
    drawn = [charts / "decode-xeon.png", charts / "decode-xeon.svg"]
    assert result.json["charts"] == list(map(str, drawn))
    assert drawn[0].read_bytes()[:4] == b"\x89PNG"
    assert "decode on Xeon" in drawn[1].read_text()


def test_charts_of_names_that_are_spelt_alike_do_not_overwrite_each_other(
    cli: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    names = ({"suite": "a.b"}, {"suite": "a-b"}, {"suite": "a.b", "cpu": "XEON"})
    for i, name in enumerate(names):
        _write(tmp_path / str(i), EARLY, 20.0, **name)
    charts = tmp_path / "charts"
    folders = [str(tmp_path / str(i)) for i in range(len(names))]
    assert cli("bench", "report", *folders, "--png", str(charts)).code == 0
    titles = [("a-b-xeon", "a.b on Xeon"), ("a-b-xeon-2", "a-b on Xeon")]
    for file, title in [*titles, ("a-b-xeon-3", "a.b on XEON")]:
        assert f"<!-- {title}, " in (charts / f"{file}.svg").read_text()


def test_charts_need_a_folder(cli: Cli, tmp_path: Path) -> None:
    _write(tmp_path, EARLY, 20.0)
    (tmp_path / "f.txt").touch()
    result = cli("bench", "report", str(tmp_path), "--png", str(tmp_path / "f.txt"))
    assert result.code == 2
    assert result.err.startswith(f"error: {tmp_path}/f.txt: cannot be written to as a folder: ")
    assert result.err.count("\n") == 1


def test_report_without_results_says_how_to_get_some(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "report", str(tmp_path))
    assert result.code == 2
    assert result.err == f"error: no results in {tmp_path}; run `attnhub bench run`\n"


def test_report_before_the_first_run_says_how_to_get_results(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("bench", "report")
    assert result.code == 2
    assert result.err == "error: no results in benchmarks/results; run `attnhub bench run`\n"


def test_report_names_a_path_that_does_not_exist(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "report", str(tmp_path / "absent"))
    assert result.code == 2
    assert result.err == f"error: {tmp_path}/absent: there is no such file or folder\n"
