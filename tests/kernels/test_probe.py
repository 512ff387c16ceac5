"""What ``kernels_run`` says of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.core.env import environment
from attnhub.core.registry import Registry
from attnhub.jit import NoCompiler, prebuilt
from attnhub.jit.store import Store
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    describe,
    kernels_run,
)
from attnhub.testing.faults import Manifest
from tests.jit import fake_driver


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a driver, without a compiler, with an empty cache of its own."""

    def none(*_: object) -> None:
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


def _publish(folder: Path, arch: str) -> None:
    """One kernel, as a store of kernels holds it."""
    store = Store(folder)
    with store.workspace() as tmp:
        (tmp / "kernel.cubin").write_bytes(b"a cubin")
        facts = {"name": "x", "arch": arch, "compiler": "nvrtc-13", "seconds": 0.1}
        store.publish("0" * 32 + ".nvrtc-13", tmp, facts)


@pytest.fixture(params=["cache", "folder", "package"])
def place(
    request: pytest.FixtureRequest,
    bare: Path,
    monkeypatch: pytest.MonkeyPatch,
    isolated_registry: Registry,
) -> Path:
    """Where kernels lie that were made before: here, for the user, or in a backend's package."""
    if request.param == "cache":
        return bare / "cache"
    if request.param == "folder":
        (bare / "made").mkdir()
        monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(bare / "made"))
        environment.cache_clear()
        return bare / "made"
    package = bare / "site/package_with_cubins"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('a probe does not import it')\n")
    monkeypatch.syspath_prepend(bare / "site")
    backend = Backend(
        name="quick",
        op="norm.rmsnorm",
        capability=Capability(accepts={"dtype": AnyValue(), "hidden": AnyValue()}),
        cost=Efficiency(compute=0.5, memory=0.5),
        load="package_with_cubins.planner:planner",
    )
    isolated_registry.register(Manifest(backend), "quick")
    prebuilt._of_package.cache_clear()
    return package / "cubins"


@pytest.mark.parametrize(
    ("arch", "device"),
    [
        pytest.param("sm_90a", "h100", id="with a suffix"),
        pytest.param("sm_80", "a100", id="without"),
        pytest.param("sm_100f", "b200", id="of a family"),
    ],
)
def test_kernels_made_before_are_enough(
    place: Path, arch: str, device: str, driver: fake_driver.Fake
) -> None:
    _publish(place, arch)
    assert kernels_run(describe(device)) == []


def test_kernels_for_another_gpu_are_not(place: Path, driver: fake_driver.Fake) -> None:
    _publish(place, "sm_80")
    [reason] = kernels_run(describe("h100"))
    assert reason.field == "compiler"


def test_no_compiler_is_looked_for_where_kernels_are(
    place: Path, driver: fake_driver.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(*_: str) -> None:
        raise AssertionError("it was looked for")

    _publish(place, "sm_90a")
    monkeypatch.setattr("attnhub.kernels.probe.choose", choose)
    assert kernels_run(describe("h100")) == []


def test_a_folder_that_is_not_there_is_the_users_to_hear_of(
    bare: Path, driver: fake_driver.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first kernel, as an error: here it would only have another backend chosen."""
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(bare / "nowhere"))
    environment.cache_clear()
    assert kernels_run(describe("h100")) == []
