"""Kernels beside torch: loaded once a process, with few imports, for torch's streams."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.jit import Cache, CompileError, KernelSpec, LoadedKernel, compilers
from attnhub.jit.errors import DriverError
from attnhub.kernels import load
from tests.jit import fake_driver
from tests.jit.fake_driver import Fake
from tests.jit.fakes import FakeCompiler, spec
from tests.unit.repo_tree import ROOT

SIZE = spec().params.size


@pytest.fixture
def fake_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    yield from fake_driver.installed(tmp_path, monkeypatch)


def _compile_with(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "choose", lambda *_: compiler)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_cuda: Fake) -> FakeCompiler:
    """A compiler and a driver that only pretend, an empty cache, and no kernel loaded yet."""
    compiler = FakeCompiler(journal=tmp_path / "journal", seconds=0.01)
    _compile_with(compiler, monkeypatch)
    fake_cuda.set("parameter size", SIZE)
    monkeypatch.setattr(load, "Cache", lambda _: Cache(tmp_path / "cache"))
    monkeypatch.setattr(load, "_loaded", {})
    return compiler


def test_threads_get_one_kernel_for_each_spec(fake: FakeCompiler, fake_cuda: Fake) -> None:
    factors = [1.0, 2.0, 3.0] * 8
    with ThreadPoolExecutor(len(factors)) as pool:
        found = list(pool.map(lambda factor: load.kernel(spec(factor)), factors))
    assert sorted(fake.built()) == ["1.0", "2.0", "3.0"]
    assert len(fake_cuda.journal("load")) == 3
    for factor, kernel in zip(factors, found, strict=True):
        assert kernel is load.kernel(spec(factor))
        assert kernel.spec == spec(factor)


def test_several_at_once_are_compiled_together(fake: FakeCompiler) -> None:
    first = load.kernel(spec(1.0))
    wanted = [spec(2.0), spec(1.0), spec(3.0), spec(2.0)]
    found = load.kernels(wanted)
    assert [kernel.spec for kernel in found] == wanted
    assert found[1] is first
    assert found[0] is found[3]
    assert fake.built() == ["1.0", "2.0", "3.0"]


def test_a_kernel_in_the_cache_is_only_loaded(
    fake: FakeCompiler, fake_cuda: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.kernel(spec())
    monkeypatch.setattr(load, "_loaded", {})
    load.kernel(spec())
    assert fake.built() == ["2.0"]
    assert len(fake_cuda.journal("load")) == 2


def test_a_failure_reaches_all_who_wait_and_is_not_remembered(
    fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = FakeCompiler(journal=fake.journal, refuses=("2.0",), seconds=0.05)
    _compile_with(refusing, monkeypatch)

    def try_it(_: int) -> str:
        with pytest.raises(CompileError, match='error: no "demo"'):
            load.kernels([spec(2.0), spec(1.0)])
        return "failed"

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(try_it, range(4))) == ["failed"] * 4
    _compile_with(fake, monkeypatch)
    assert load.kernel(spec(2.0)).spec == spec(2.0)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("ask", [load.kernel, lambda spec: load.kernels([spec])[0]])
def test_an_interrupted_thread_does_not_take_the_others_along(
    ask: Callable[[KernelSpec], LoadedKernel],
    interrupt: type[BaseException],
    fake: FakeCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, compiles = threading.Event(), load.compile_kernels

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(load, "compile_kernels", compiles)
        waits.wait(30)
        raise interrupt

    class Telling(Future[Any]):
        """Says that somebody waits for it."""

        def result(self, timeout: float | None = None) -> Any:
            waits.set()
            return super().result(timeout)

    monkeypatch.setattr(load, "compile_kernels", interrupted)
    monkeypatch.setattr(load, "Future", Telling)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load.kernel, spec())
        while not load._loaded:
            time.sleep(0.001)
        others = pool.submit(ask, spec())
        with pytest.raises(interrupt):
            first.result()
        assert others.result().spec == spec()
    assert fake.built() == ["2.0"]


def test_a_driver_that_refuses_a_kernel_keeps_the_others(
    fake: FakeCompiler, fake_cuda: Fake
) -> None:
    first = load.kernel(spec(1.0))
    fake_cuda.set("cuLibraryLoadData", 200)
    with pytest.raises(DriverError, match="the driver may be older than the compiler"):
        load.kernels([spec(1.0), spec(2.0)])
    assert load.kernel(spec(1.0)) is first
    fake_cuda.set("cuLibraryLoadData", 0)
    assert load.kernel(spec(2.0)).spec == spec(2.0)


_HIT = """
import sys
from pathlib import Path
import torch
from attnhub.kernels import load
from attnhub.jit import compilers, driver
from tests.jit.fake_driver import Fake
from tests.jit.fakes import FakeCompiler, spec
compilers.choose = lambda *_: FakeCompiler(journal=Path(sys.argv[1]), dies=True)
driver._LIBRARY = sys.argv[2]
Fake(Path(sys.argv[2])).set("parameter size", spec().params.size)
before = {*sys.modules}
launch = load.kernel(spec()).launcher(0, block=32)
launch(1, 7, 1, 2)
new = {*sys.modules} - before
print(*(name for name in ("jinja2", "filelock", "rich", "triton") if name in new))
"""


def test_a_hit_needs_neither_jinja_nor_locks(
    fake: FakeCompiler, fake_cuda: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.kernel(spec())
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path / "cache"))
    command = [sys.executable, "-c", _HIT, str(fake.journal), fake_cuda.library]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _wait_for_text(stream: io.StringIO) -> None:
    end = time.monotonic() + 30
    while not stream.getvalue() and time.monotonic() < end:
        time.sleep(0.001)


def test_a_person_at_a_terminal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(load, "_PATIENCE_SECONDS", 0)
    with load._notice([spec(name="merge"), spec(name="attention"), spec(3.0, name="merge")]):
        _wait_for_text(sys.stderr)
    assert sys.stderr.getvalue() == (
        "attnhub: compiling attention, merge (once; kept for later processes)\n"
    )


@pytest.mark.parametrize(
    ("stderr", "patience"),
    [
        pytest.param(io.StringIO(), 0, id="no terminal"),
        pytest.param(_Terminal(), 1000, id="done at once"),
    ],
)
def test_nobody_else_is(
    stderr: io.StringIO, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(load, "_PATIENCE_SECONDS", patience)
    with load._notice([spec()]):
        pass
    assert stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("device", "arch"),
    [
        pytest.param("a100", "sm_80", id="no suffix before Hopper"),
        pytest.param("sm_86", "sm_86", id="a minor number"),
        pytest.param("rtx4090", "sm_89", id="the last without a suffix"),
        pytest.param("h200", "sm_90a", id="Hopper"),
        pytest.param("b200", "sm_100a", id="Blackwell"),
        pytest.param("rtx5090", "sm_120a", id="Blackwell for desktops"),
    ],
)
def test_arch(device: str, arch: str) -> None:
    assert load.arch(device) == arch


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_cpu_has_no_arch(device: str | torch.device) -> None:
    with pytest.raises(InvalidArgument, match="cpu runs no CUDA kernels: give a GPU"):
        load.arch(device)


def test_the_stream_is_found_without_torchs_private_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = {1: SimpleNamespace(cuda_stream=2**40)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    assert load._current_stream(1) == 2**40


def test_tensor_map_of_a_view() -> None:
    cache = torch.zeros(6, 16, 4, 64, dtype=torch.bfloat16).transpose(1, 2)[:, :3]
    made = load.tensor_map(cache, (1, 1, 16, 64))
    assert made.address == cache.data_ptr()
    assert (made.dtype, made.swizzle) == ("bfloat16", 128)
    assert made.shape == (6, 3, 16, 64)
    assert made.strides == (8192, 128, 512, 2)
