"""What `attnhub doctor` says of compilers, the driver and kernels built ahead of time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from attnhub.cli import diagnosis, toolchain
from attnhub.core.device import CPU, named
from attnhub.core.env import environment
from attnhub.jit import Cache, compile_kernels, prebuilt
from attnhub.jit.errors import DriverError
from attnhub.jit.store import Store
from attnhub.plugin import AnyValue, Backend, Capability, Efficiency
from tests.cli.conftest import Cli, Install, Plugin
from tests.jit.fakes import FakeCompiler, spec


@pytest.fixture(autouse=True)
def no_shadows_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has installed is not what is tested here."""
    monkeypatch.setattr(diagnosis, "shadowed", lambda group: [])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def _store(folder: Path, tmp_path: Path) -> Path:
    """Two kernels, of two architectures, built ahead of time."""
    compiler = FakeCompiler(journal=tmp_path / "journal")
    specs = [spec(1.5, arch="sm_90a"), spec(2.5)]
    made = compile_kernels(specs, cache=Cache(tmp_path / "builder"), compiler=compiler)
    prebuilt.export(made, folder)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC 12.3\n",
            "580.65.06",
            id="closed",
        ),
        pytest.param(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124  Release Build\n",
            "570.124",
            id="open, two numbers",
        ),
        pytest.param("something else\n", "", id="says nothing"),
        pytest.param(None, "", id="no module"),
    ],
)
def test_the_driver_is_named(
    text: str | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    if text is not None:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(toolchain, "_MODULE", tmp_path / "version")
    monkeypatch.setattr(toolchain.drivers, "get", lambda: SimpleNamespace(version=12080))
    assert toolchain.driver() == {"cuda": "12.8", "version": version, "why": ""}
    own = f", version {version}" if version else ""
    assert f"\n  driver: runs CUDA 12.8 and older{own}\n" in cli("doctor").out


def test_no_driver_is_no_fault(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def get() -> None:
        raise DriverError("no NVIDIA driver: libcuda.so.1 is not there")

    monkeypatch.setattr(toolchain.drivers, "get", get)
    result = cli("doctor", "--json")
    assert result.code == 0
    assert result.json["driver"]["why"] == "no NVIDIA driver: libcuda.so.1 is not there"
    assert "\n  no NVIDIA driver: libcuda.so.1 is not there\n" in cli("doctor").out


@pytest.mark.parametrize(
    ("device", "arch"),
    [
        pytest.param(CPU, "", id="none for a CPU"),
        pytest.param(named("a100"), "sm_80", id="plain"),
        pytest.param(named("h200"), "sm_90a", id="with its own instructions"),
    ],
)
def test_what_kernels_are_compiled_for(device: object, arch: str) -> None:
    assert diagnosis._facts("cuda:0", device)["compiled_for"] == arch  # type: ignore[arg-type]


def test_kernels_built_ahead_of_time_are_listed(
    cli: Cli, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the user's folder, and those that the package of a plugin's code brings."""
    package = tmp_path / "site/ready_made_plugin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "planner.py").write_text("planner = None\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    own, brought = (_store(folder, tmp_path) for folder in (tmp_path / "own", package / "cubins"))
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(own))
    environment.cache_clear()
    backend = Backend(
        name="quick",
        op="norm.rmsnorm",
        capability=Capability(accepts={"dtype": AnyValue(), "hidden": AnyValue()}),
        cost=Efficiency(compute=0.5, memory=0.5),
        load="ready_made_plugin.planner:planner",
    )
    install(Plugin("ready_made", backend))
    result = cli("doctor", "--json")
    assert (result.code, result.json["problems"]) == (0, [])
    expected = {"kernels": 2, "archs": ["sm_80", "sm_90a"]}
    assert result.json["prebuilt"] == [{"folder": str(f), **expected} for f in (own, brought)]
    text = cli("doctor").out
    assert f"\n  2 kernels for sm_80, sm_90a, built ahead of time, in {own}\n" in text


def test_a_damaged_kernel_is_a_fault(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _store(tmp_path / "own", tmp_path)
    [damaged] = [entry for entry in Store(folder).entries() if entry.arch == "sm_90a"]
    (damaged.folder / "kernel.cubin").write_bytes(b"half")
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(folder))
    environment.cache_clear()
    result = cli("doctor", "--json")
    assert result.code == 1
    assert result.json["problems"] == [
        {
            "what": "kernel 'scale' for sm_90a",
            "why": f"{damaged.folder} is damaged; install it anew",
        }
    ]


def test_a_folder_that_is_not_there_is_a_fault(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(tmp_path / "gone"))
    environment.cache_clear()
    [problem] = cli("doctor", "--json").json["problems"]
    assert problem["what"] == "ATTNHUB_CUBIN_DIR"
    assert "gone: there is no such folder" in problem["why"]


def test_the_toolkit_that_the_user_names_comes_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lib64/libnvrtc.so.13", "lib64/libnvrtc-builtins.so.13.9", "include/cuda_fp16.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    environment.cache_clear()
    nvrtc = cli("doctor", "--json").json["compilers"][0]
    assert (nvrtc["how"], nvrtc["version"]) == ("CUDA_HOME", "13.9")
    assert nvrtc["path"] == str(tmp_path / "lib64/libnvrtc.so.13")
