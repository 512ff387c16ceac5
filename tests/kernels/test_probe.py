"""What ``kernels_run`` says of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.core.env import environment
from attnhub.jit import Cache, NoCompiler
from attnhub.plugin import describe, kernels_run
from tests.jit import fake_driver


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a driver, without a compiler, with an empty cache of its own."""

    def none(*_: str) -> None:
        raise NoCompiler("no compiler; install NVRTC", {"nvrtc": "not found", "nvcc": "not found"})

    monkeypatch.setattr("attnhub.kernels.probe.choose", none)
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNHUB_CUBIN_DIR", raising=False)
    environment.cache_clear()
    yield tmp_path
    environment.cache_clear()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_driver.Fake]:
    yield from fake_driver.installed(tmp_path, monkeypatch)


def test_a_compiler_and_a_driver_are_enough(driver: fake_driver.Fake) -> None:
    assert kernels_run(describe("h100")) == []


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnhub.jit.driver._LIBRARY", "libnowhere.so.1")
    [reason] = kernels_run(describe("h100"))
    assert reason.field == "driver"
    assert "libnowhere.so.1" in reason.actual


def test_nothing_to_make_kernels_with(bare: Path, driver: fake_driver.Fake) -> None:
    [reason] = kernels_run(describe("h100"))
    assert str(reason) == (
        "compiler is missing, needs NVRTC, nvcc or kernels made before (no compiler; install NVRTC)"
    )


def test_kernels_made_before_are_enough(bare: Path, driver: fake_driver.Fake) -> None:
    made = bare / "made"
    made.mkdir()
    (made / "kernel.cubin").write_bytes(b"a cubin")
    facts = {"name": "x", "arch": "sm_90a", "compiler": "nvrtc-13", "seconds": 0.1}
    Cache(bare / "cache").publish("0" * 32 + ".nvrtc-13", made, facts)
    assert kernels_run(describe("h100")) == []


def test_a_folder_of_kernels_is_enough(
    bare: Path, driver: fake_driver.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(bare))
    environment.cache_clear()
    assert kernels_run(describe("h100")) == []
