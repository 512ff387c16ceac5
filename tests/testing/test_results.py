from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing import results
from attnhub.testing.results import Environment, Row, environment, read, usable_folder, write

HERE = Environment(
    gpu="NVIDIA H200",
    versions={"torch": "2.11.0", "cpu": "Xeon(R) 8480"},
    commit="0123456789abcdef+dirty",
    date="2026-11-30T14:05:00Z",
)
FILE = "decode-nvidia-h200-xeon-r-8480-2026-11-30-0123456789-dirty.json"


def _row(case: str = "B16 L8192", value: float = 3.5, suite: str = "decode") -> Row:
    return HERE.row(
        suite,
        case,
        "bandwidth",
        value,
        "TB/s",
        share_of_ceiling=0.82,
        peers={"flashinfer": 2.5, "flash-attn": 7},
    )


def test_rows_survive_the_round_trip(tmp_path: Path) -> None:
    rows = [_row(), replace(_row("µ-batch"), share_of_ceiling=None, peers={})]
    paths = write(rows, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == [FILE]
    assert [path.name for path in paths[0].parent.iterdir()] == [FILE]
    assert read(paths) == rows
    assert read([tmp_path / "new" / "folder"]) == rows


def test_each_suite_has_its_file(tmp_path: Path) -> None:
    rows = [_row(), _row(suite="norm.rmsnorm"), _row("B1")]
    names = [path.name for path in write(rows, tmp_path)]
    assert names == [FILE, FILE.replace("decode", "norm-rmsnorm")]
    assert [row.case for row in read([tmp_path / names[0]])] == ["B16 L8192", "B1"]


def test_a_second_run_of_the_day_replaces_what_it_measured_again(tmp_path: Path) -> None:
    write([_row("a", 1.0), _row("b", 2.0)], tmp_path)
    write([_row("b", 3.0), _row("c", 4.0)], tmp_path)
    assert [(row.case, row.value) for row in read([tmp_path])] == [("a", 1), ("b", 3), ("c", 4)]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"commit": "f" * 40}, id="before and after a commit"),
        pytest.param({"commit": "0123456789abcdef"}, id="before a change and with it"),
        pytest.param({"versions": {"cpu": "EPYC 9654"}}, id="another host of the same GPU"),
        pytest.param({"gpu": "cpu"}, id="the host itself"),
        pytest.param({"date": "2026-12-01T00:00:00Z"}, id="the next day"),
    ],
)
def test_runs_that_differ_do_not_overwrite_each_other(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write([_row(value=1.0)], tmp_path)
    write([replace(_row(value=2.0), **changes)], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(row.value for row in read([tmp_path])) == [1.0, 2.0]


def test_rows_whose_names_are_spelt_alike_share_a_file_and_stay_apart(tmp_path: Path) -> None:
    rows = [_row(suite="norm.rms", value=1.0), _row(suite="norm-rms", value=2.0)]
    assert len(write(rows, tmp_path)) == 1
    assert read([tmp_path]) == rows


@pytest.mark.parametrize(
    ("gpu", "versions", "machine"),
    [
        pytest.param("NVIDIA H200", {"cpu": "Xeon"}, "NVIDIA H200, Xeon", id="a GPU and its host"),
        pytest.param("NVIDIA H200", {}, "NVIDIA H200", id="a GPU"),
        pytest.param("cpu", {"cpu": "Xeon"}, "Xeon", id="a CPU"),
        pytest.param("cpu", {}, "cpu", id="a CPU of an unknown model"),
    ],
)
def test_the_machine_is_the_gpu_and_the_processor(
    gpu: str, versions: dict[str, str], machine: str
) -> None:
    row = replace(_row(), gpu=gpu, versions=versions)
    assert row.machine == machine
    assert row.subject == ("decode", machine, "B16 L8192", "bandwidth")
    assert row.key == (*row.subject, "0123456789abcdef+dirty")


@pytest.mark.parametrize(
    ("commit", "short"),
    [("0123456789abcdef", "0123456789"), ("0" * 40 + "+dirty", "0" * 10 + "+dirty")],
    ids=["clean", "dirty"],
)
def test_a_short_commit_keeps_its_mark(commit: str, short: str) -> None:
    assert replace(_row(), commit=commit).short_commit == short


@pytest.mark.parametrize("call", [usable_folder, lambda path: write([_row()], path)])
@pytest.mark.parametrize("name", ["f.txt", "f.txt/below"], ids=["a file", "below a file"])
def test_a_file_is_no_folder(tmp_path: Path, call: Callable[[Path], Any], name: str) -> None:
    (tmp_path / "f.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match=f"{name}: cannot be written to as a folder: "):
        call(tmp_path / name)
    assert (tmp_path / "f.txt").read_text() == "mine"


def test_a_file_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).with_suffix(".part").mkdir()
    with pytest.raises(InvalidArgument, match=rf"{FILE}: cannot be written: "):
        write([_row()], tmp_path)


@pytest.mark.parametrize(
    ("unit", "advantage"),
    [("TB/s", 4.0), ("TFLOP/s", 4.0), ("us", 0.25), ("ms", 0.25), ("MB", 0.25)],
    ids=["a rate", "another rate", "a time", "another time", "a size"],
)
def test_advantage_is_above_one_when_ahead(unit: str, advantage: float) -> None:
    row = HERE.row("s", "c", "m", 8.0, unit, peers={"peer": 2.0})
    assert row.advantage("peer") == advantage


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("suite", " ", "suite=' ' is not a text"),
        ("value", float("nan"), "value=nan is not a positive finite number"),
        ("value", True, "value=True is not"),
        ("value", "3", "value='3' is not"),
        ("value", 0, "value=0 is not"),
        ("share_of_ceiling", float("inf"), "share_of_ceiling=inf is not null or"),
        ("peers", {"x": "fast"}, "peers={'x': 'fast'} is not a map"),
        ("versions", {"torch": 2}, "versions={'torch': 2} is not a map from names to texts"),
        ("date", "2026-11-30", "date='2026-11-30' is not a time such as 2026-01-31T14:05:00Z"),
    ],
)
def test_wrong_values_are_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        replace(_row(), **{field: value})


def _edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["rows"][0] |= changes
    for name in [name for name, value in changes.items() if value is None]:
        del content["rows"][0][name]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_unknown_and_missing_fields_are_named_with_their_place(tmp_path: Path) -> None:
    (path,) = write([_row()], tmp_path)
    _edit(path, unit=None, commit=None, clock=1980)
    with pytest.raises(
        InvalidArgument,
        match=r"-dirty.json, row 0: missing fields: unit, commit; unknown fields: clock; a row",
    ):
        read([path])


def test_a_wrong_value_in_a_file_is_named_with_its_place(tmp_path: Path) -> None:
    (path,) = write([_row()], tmp_path)
    _edit(path, value=-1)
    with pytest.raises(InvalidArgument, match=r"row 0: result row: value=-1 is not a positive"):
        read([path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable JSON file"),
        ("[]", 'a result file is {"format": 1'),
        ('{"format": 2, "rows": []}', "format 2, this version reads 1"),
        ('{"format": 1, "rows": [3]}', "row 0: 3 is not an object"),
    ],
    ids=["cut off", "a list", "a later format", "a number as a row"],
)
def test_files_of_another_form_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        read([path])


def test_absent_files_and_a_lone_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"absent.json: there is no such file or folder"):
        read([tmp_path / "absent.json"])
    with pytest.raises(InvalidArgument, match="list of paths"):
        read(str(tmp_path))


def test_the_environment_of_a_cpu_run_needs_no_gpu() -> None:
    here = environment("cpu")
    assert here.gpu == "cpu"
    assert here.versions["torch"] == torch.__version__
    assert re.fullmatch(r"3\.\d+\.\d+.*", here.versions["python"])
    assert here.versions["cpu"]
    measured = datetime.strptime(here.date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert timedelta(0) <= datetime.now(timezone.utc) - measured < timedelta(minutes=5)
    assert re.fullmatch(r"[0-9a-f]{40}(\+dirty)?|unknown", here.commit)
    assert here.row("s", "c", "m", 1.0, "us").gpu == "cpu"


def test_who_runs_it_knows_the_commit_better_than_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that was copied somewhere may lie in another tree's history."""
    monkeypatch.setattr(results, "_commit", lambda file: "fedcba9")
    assert environment("cpu").commit == "fedcba9"
    assert environment("cpu", commit="0123abc").commit == "0123abc"


def test_the_commit_is_that_of_the_file_and_says_when_it_is_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "tracked.py"
    file.write_text("1\n", encoding="utf-8")
    git("init", "-q")
    assert results._commit(file) == "unknown"
    git("add", "tracked.py")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    (tmp_path / "installed.py").touch()
    assert results._commit(file) == head
    assert results._commit(tmp_path / "installed.py") == "unknown"
    file.write_text("2\n", encoding="utf-8")
    assert results._commit(file) == f"{head}+dirty"
