"""What all commands share: help without torch, one-line errors, exit statuses."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from attnhub.cli import app
from attnhub.errors import PerformanceWarning
from tests.cli.conftest import Cli
from tests.unit.repo_tree import ROOT

_RUN = """
import sys
from attnhub.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print([m for m in ("torch", "triton", "numpy") if m in sys.modules], file=sys.stderr)
    raise
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--help"], id="help"),
        pytest.param(["bench", "run", "--help"], id="help of a command that measures"),
        pytest.param(["explain", "--help"], id="help of a command that needs problems"),
        pytest.param(["warmup", "--help"], id="help of a command that compiles"),
        pytest.param(["list"], id="list"),
        pytest.param(["list", "--json"], id="list as JSON"),
        pytest.param(["bench", "nonsense"], id="a wrong word"),
    ],
)
def test_torch_stays_out(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *words], cwd=ROOT, capture_output=True, check=False, text=True
    )
    assert done.returncode == (2 if "nonsense" in words else 0), done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_python_m_runs_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnhub", "list", "--op", "no.such"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown op 'no.such'; known: ")


def test_help_names_every_command(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    assert all(name in result.out for name in ("list", "explain", "doctor", "warmup", "bench"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["lst"], "No such command 'lst'.", id="command"),
        pytest.param(["list", "--jason"], "No such option: --jason", id="option"),
        pytest.param(["explain"], "Missing argument", id="nothing to explain"),
        pytest.param(["explain", "atention"], "unknown op 'atention'; did you mean", id="op"),
        pytest.param(["list", "--op", "x.*"], "unknown op 'x.*'; known: ", id="glob"),
        pytest.param(["bench", "run", "--suite", "x"], "unknown suite 'x'; known: ", id="suite"),
        pytest.param(["bench", "report", "no/such"], "no/such: there is no such file", id="file"),
    ],
)
def test_a_users_error_is_one_line(cli: Cli, words: list[str], message: str) -> None:
    result = cli(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1


def test_a_warning_is_one_line_and_not_on_stdout(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        warnings.warn("slow here", PerformanceWarning, stacklevel=1)

    monkeypatch.setattr(app, "app", slow)
    assert cli("list") == type(cli("list"))(0, "", "warning: slow here\n")


def test_a_bare_call_prints_help_and_fails(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "explain" in result.out + result.err
    assert "error:" not in result.err
