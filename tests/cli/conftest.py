"""A command run in this process, with plugins of the test's own.

Golden texts and generated tables are rewritten by ``pytest tests/cli --update-golden``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnhub.cli import main
from attnhub.core import discovery, env
from attnhub.plugin import Backend, hookimpl


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden texts")


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left: exit status, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*words: str) -> Result:
        with pytest.raises(SystemExit) as end:
            main(words)
        return Result(int(end.value.code or 0), *capsys.readouterr())

    return run


class Plugin:
    """An entry point and the plugin it names, in one."""

    def __init__(self, name: str, *backends: Backend, load: Callable[[], None] | None = None):
        self.name = name
        self.dist = SimpleNamespace(version="1.2.3")
        self._backends = backends
        self._load = load

    def load(self) -> Plugin:
        if self._load is not None:
            self._load()
        return self

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        return list(self._backends)


Install = Callable[..., None]


def _forget() -> None:
    env.environment.cache_clear()
    discovery.replace_default(None)


@pytest.fixture(autouse=True)
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Call it with plugins to have these, and no others, beside the built-in one."""
    plugins: list[Plugin] = []
    monkeypatch.setattr(discovery, "entry_points", lambda: plugins)
    for name in env.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    _forget()
    yield lambda *given: plugins.extend(given)
    _forget()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a file, or write the file under ``--update-golden``."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--update-golden", default=False):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text, "pytest tests/cli --update-golden"

    return compare
