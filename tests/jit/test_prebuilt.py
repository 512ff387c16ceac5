"""Kernels built ahead of time: found without a compiler, checked, and never written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnhub.core.env import environment
from attnhub.errors import InvalidArgument
from attnhub.jit import compilers, prebuilt
from attnhub.jit.build import Progress, compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Compiler
from attnhub.jit.errors import CacheWarning, NoCompiler
from attnhub.jit.store import Store
from tests.jit.fakes import FakeCompiler, spec
from tests.unit.repo_tree import ROOT

Export = Callable[..., Path]


@pytest.fixture
def export(tmp_path: Path, fake: FakeCompiler) -> Export:
    """Build kernels on a machine that has a compiler, and write them to a folder."""

    def run(*specs: object, folder: Path = tmp_path / "exported") -> Path:
        made = compile_kernels(specs, cache=Cache(tmp_path / "builder"), compiler=fake)  # type: ignore[arg-type]
        prebuilt.export(made, folder)
        return folder

    return run


@pytest.fixture
def cubin_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    def use(folder: Path) -> None:
        monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(folder))
        environment.cache_clear()

    yield use
    monkeypatch.undo()
    environment.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(prefer: str = "", cuda_home: str = "") -> Compiler:
        raise NoCompiler("no compiler here", {})

    monkeypatch.setattr(compilers, "choose", choose)


def _files(folder: Path) -> dict[str, int]:
    """Every file of a folder and when it was last changed."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in paths}


def test_another_machine_needs_no_compiler(
    export: Export,
    cubin_dir: Callable[[Path], None],
    no_compiler: None,
    fake: FakeCompiler,
    tmp_path: Path,
) -> None:
    wanted = [spec(2.5), spec(1.5, arch="sm_90a"), spec(2.5)]
    built = compile_kernels(wanted, cache=Cache(tmp_path / "builder"), compiler=fake)
    folder = export(spec(1.5), *wanted)
    cubin_dir(folder)
    before = _files(folder)
    cache = Cache(tmp_path / "other machine")
    told: list[Progress] = []
    made = compile_kernels(wanted, cache=cache, progress=told.append)
    assert [cubin.image for cubin in made] == [cubin.image for cubin in built]
    assert {(c.origin, c.cached, c.compiler) for c in made} == {("prebuilt", True, "")}
    assert [(p.done, p.total) for p in told] == [(1, 2), (2, 2)]
    # Nothing is written: neither the store, nor the cache, which need not even exist.
    assert _files(folder) == before
    assert not cache.home.exists()


def test_a_store_is_small_and_names_no_machine(export: Export) -> None:
    folder = export(spec(1.5))
    [entry] = Store(folder).entries()
    assert (entry.name, entry.arch, entry.compiler) == ("scale", "sm_80", "fake-1")
    assert sorted(p.name for p in entry.folder.iterdir()) == ["entry.json", "kernel.cubin"]
    assert sorted(p.name for p in folder.iterdir()) == ["kernels", "rendered"]
    texts = [p.read_text() for p in (entry.folder / "entry.json", *folder.glob("rendered/*"))]
    assert not any(str(ROOT) in text or str(folder) in text for text in texts)


def test_exports_add_up(export: Export, fake: FakeCompiler) -> None:
    folder = export(spec(1.5))
    before = _files(folder)
    export(spec(1.5), spec(2.5))
    assert before.items() <= _files(folder).items()
    assert len(Store(folder).entries()) == 2
    assert fake.built() == ["1.5", "2.5"]


@pytest.mark.parametrize("how", ["package", "variable"])
def test_wrong_content_is_a_miss(
    how: str,
    export: Export,
    cubin_dir: Callable[[Path], None],
    demo_copy: Path,
    cache: Cache,
    fake: FakeCompiler,
) -> None:
    """Built from other headers than those that lie here now."""
    kernel = spec(package="demo_copy")
    folder = export(kernel, folder=demo_copy / "cubins" if how == "package" else demo_copy / "x")
    if how == "variable":
        cubin_dir(folder)
    prebuilt._of_package.cache_clear()
    [first] = compile_kernels([kernel], cache=cache, compiler=fake)
    header = demo_copy / "include/demo/index.cuh"
    header.write_text(header.read_text() + "// more\n")
    [after] = compile_kernels([kernel], cache=cache, compiler=fake)
    assert (first.origin, after.origin) == ("prebuilt", "built")
    assert first.content != after.content


def test_a_package_brings_its_own(
    export: Export, demo_copy: Path, cache: Cache, no_compiler: None
) -> None:
    export(spec(package="demo_copy"), folder=demo_copy / "cubins")
    prebuilt._of_package.cache_clear()
    [cubin] = compile_kernels([spec(package="demo_copy")], cache=cache)
    assert cubin.origin == "prebuilt"
    # A kernel of equal content whose template another package holds is not looked for there.
    with pytest.raises(NoCompiler):
        compile_kernels([spec()], cache=cache)


def _flip(folder: Path) -> None:
    image = bytearray((folder / "kernel.cubin").read_bytes())
    image[5] ^= 1
    (folder / "kernel.cubin").write_bytes(image)


def _lose_digest(folder: Path) -> None:
    (folder / "entry.json").unlink()


def _half(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(b"half")


@pytest.mark.parametrize("damage", [_flip, _lose_digest, _half])
def test_a_damaged_kernel_is_a_miss_and_told_of(
    damage: Callable[[Path], None],
    export: Export,
    cubin_dir: Callable[[Path], None],
    cache: Cache,
    fake: FakeCompiler,
) -> None:
    folder = export(spec(1.5))
    [entry] = Store(folder).entries()
    damage(entry.folder)
    cubin_dir(folder)
    with pytest.warns(CacheWarning, match=f"kernel 'scale' .* in {entry.folder} is damaged"):
        [cubin] = compile_kernels([spec(1.5)], cache=cache, compiler=fake)
    assert cubin.origin == "built"
    # It is the store's owner who repairs it.
    assert (entry.folder / "kernel.cubin").exists()


def test_it_comes_before_the_cache_unless_unwanted(
    export: Export, cubin_dir: Callable[[Path], None], cache: Cache, fake: FakeCompiler
) -> None:
    compile_kernels([spec(1.5)], cache=cache, compiler=fake)
    cubin_dir(export(spec(1.5)))
    [found] = compile_kernels([spec(1.5)], cache=cache, compiler=fake)
    [cached] = compile_kernels([spec(1.5)], cache=cache, compiler=fake, prebuilt=False)
    assert (found.origin, cached.origin) == ("prebuilt", "cache")


def test_lost_sources_are_rendered_again(
    export: Export, cubin_dir: Callable[[Path], None], cache: Cache, no_compiler: None
) -> None:
    folder = export(spec(1.5))
    shutil.rmtree(folder / "rendered")
    cubin_dir(folder)
    [cubin] = compile_kernels([spec(1.5)], cache=cache)
    assert cubin.origin == "prebuilt"


def test_what_is_missing_says_that_there_is_no_compiler(
    export: Export, cubin_dir: Callable[[Path], None], cache: Cache, no_compiler: None
) -> None:
    cubin_dir(export(spec(1.5)))
    with pytest.raises(NoCompiler):
        compile_kernels([spec(1.5), spec(2.5)], cache=cache)


def test_without_a_compiler_the_cache_of_any_serves(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image's cache, filled where there was a compiler; where there is one, it decides."""
    builder = FakeCompiler(journal=tmp_path / "journal")
    [first] = compile_kernels([spec(1.5)], cache=cache, compiler=builder)
    newer = FakeCompiler(journal=tmp_path / "journal", tag="fake-2")
    monkeypatch.setattr(compilers, "choose", lambda *_: newer)
    [other] = compile_kernels([spec(1.5)], cache=cache)
    assert (other.origin, other.compiler) == ("built", "fake-2")
    shutil.rmtree(Store(cache.home).place(other.key))

    def choose(*_: str) -> Compiler:
        raise NoCompiler("no compiler here", {})

    monkeypatch.setattr(compilers, "choose", choose)
    [found] = compile_kernels([spec(1.5)], cache=Cache(cache.home))
    assert (found.origin, found.key, found.image) == ("cache", first.key, first.image)


def test_no_compiler_is_looked_for_when_all_is_there(
    export: Export,
    cubin_dir: Callable[[Path], None],
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cubin_dir(export(spec(1.5)))
    monkeypatch.setattr(compilers, "choose", None)
    [cubin] = compile_kernels([spec(1.5)], cache=cache)
    assert cubin.origin == "prebuilt"


def test_a_fresh_process_finds_it_without_tools(export: Export, tmp_path: Path) -> None:
    """No PATH, no home that can be written, no template engine, and no compiler's module."""
    folder = export(spec(2.0))
    heavy = ("jinja2", "filelock", "torch", "attnhub.jit.render", "attnhub.jit.compilers.nvrtc")
    code = (
        "import sys; from tests.jit.fakes import spec; from attnhub.jit import *; "
        f"[c] = compile_kernels([spec(2.0)], cache=Cache({str(tmp_path / 'file/x')!r})); "
        f"print(c.origin, [m for m in {heavy!r} if m in sys.modules])"
    )
    (tmp_path / "file").write_text("")
    env = {"PYTHONPATH": str(ROOT), "ATTNHUB_CUBIN_DIR": str(folder), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "prebuilt []\n"), done.stderr


def test_a_folder_that_is_not_there_is_an_error(
    cubin_dir: Callable[[Path], None], cache: Cache, fake: FakeCompiler, tmp_path: Path
) -> None:
    cubin_dir(tmp_path / "no/such")
    with pytest.raises(InvalidArgument, match="no/such: there is no such folder; `attnhub warmup"):
        compile_kernels([spec(1.5)], cache=cache, compiler=fake)
    # Whoever is about to make it is not kept from it.
    [cubin] = compile_kernels([spec(1.5)], cache=cache, compiler=fake, prebuilt=False)
    assert cubin.origin == "built"


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path, export: Export) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match=r"cannot be written \(Not a directory\)"):
        export(spec(1.5), folder=tmp_path / "file/cubins")
