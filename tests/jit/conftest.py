"""A cache of the test's own, and a copy of the demo kernel that it may change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.jit.cache import Cache
from tests.jit import fake_driver
from tests.jit.fake_driver import Fake
from tests.jit.fakes import FakeCompiler

DEMO = Path(__file__).with_name("demo")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def fake(tmp_path: Path) -> FakeCompiler:
    return FakeCompiler(journal=tmp_path / "cache.journal")


@pytest.fixture
def demo_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the importable package ``demo_copy``."""
    shutil.copytree(DEMO, tmp_path / "site/demo_copy")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site/demo_copy"


@pytest.fixture
def fake_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    yield from fake_driver.installed(tmp_path, monkeypatch)
