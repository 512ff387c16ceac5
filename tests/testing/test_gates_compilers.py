"""Gates compile by the compilers that the user names, as kernels are compiled for use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.core.env import environment
from attnhub.jit import NoCompiler, compilers
from attnhub.jit.compilers import Finding
from attnhub.testing.gates import Gate
from attnhub.testing.gates.building import build
from attnhub.testing.gates.cases import Case
from tests.jit.fakes import spec


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The toolkits that were looked at first; none has a compiler."""
    found: list[str] = []

    def search(name: str, cuda_home: str) -> Finding:
        found.append(cuda_home)
        return Finding(name=name, why="none there")

    monkeypatch.setattr(compilers, "_search", search)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    environment.cache_clear()
    yield found
    environment.cache_clear()


def test_a_case(asked: list[str], tmp_path: Path) -> None:
    case = Case(spec=spec(), gate=Gate(), compiler="nvcc")
    assert case.check(lambda name, value: None) == "none there"
    assert {*asked} == {str(tmp_path)}


def test_a_build(asked: list[str], tmp_path: Path) -> None:
    with pytest.raises(NoCompiler, match="nvcc: none there"):
        build(spec(), "nvcc")
    assert asked == [str(tmp_path)]


def test_another_toolkit_may_be_given(asked: list[str]) -> None:
    compilers.discover("")
    compilers.discover("/elsewhere")
    assert asked == ["", "", "/elsewhere", "/elsewhere"]
