"""The cache folder: broken entries, folders that cannot be written, listing and pruning."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnhub.jit.build import Progress, compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.errors import CacheWarning, CompileError
from tests.jit.fakes import FakeCompiler, spec

NOBODY = 65534


def _truncate(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(b"")


def _flip(folder: Path) -> None:
    image = bytearray((folder / "kernel.cubin").read_bytes())
    image[5] ^= 1
    (folder / "kernel.cubin").write_bytes(image)


def _lose(folder: Path) -> None:
    (folder / "kernel.cubin").unlink()


def _scramble(folder: Path) -> None:
    (folder / "entry.json").write_text("[]")


def _half_facts(folder: Path) -> None:
    (folder / "entry.json").write_text('{"sha256"')


@pytest.mark.parametrize("damage", [_truncate, _flip, _lose, _scramble, _half_facts])
def test_broken_entry_is_built_again(
    damage: Callable[[Path], None], cache: Cache, fake: FakeCompiler
) -> None:
    [first] = compile_kernels([spec()], cache=cache, compiler=fake)
    [entry] = cache.entries()
    damage(entry.folder)
    [second] = compile_kernels([spec()], cache=cache, compiler=fake)
    [third] = compile_kernels([spec()], cache=cache, compiler=fake)
    assert (second.cached, third.cached) == (False, True)
    assert third.image == second.image == first.image
    assert not list((cache.root / "tmp").iterdir())


def test_broken_rendered_source_only_misses(cache: Cache, fake: FakeCompiler) -> None:
    [first] = compile_kernels([spec()], cache=cache, compiler=fake)
    for kept in (cache.root / "rendered").iterdir():
        kept.write_bytes(b"\xff half")
    [second] = compile_kernels([spec()], cache=cache, compiler=fake)
    assert second.image == first.image
    assert second.cached
    assert fake.built() == ["2.0"]


def test_entry_can_be_read_and_compiled_by_hand(cache: Cache, fake: FakeCompiler) -> None:
    [cubin] = compile_kernels([spec()], cache=cache, compiler=fake)
    [entry] = cache.entries()
    assert {f.name for f in entry.folder.iterdir()} == {
        "build.log",
        "entry.json",
        "kernel.cu",
        "kernel.cubin",
    }
    assert (entry.folder / "kernel.cu").read_text().startswith("// kernel 'scale' for sm_80")
    assert json.loads((entry.folder / "entry.json").read_text())["bytes"] == len(cubin.image)
    assert (entry.key, entry.name, entry.arch) == (cubin.key, "scale", "sm_80")
    assert (entry.compiler, entry.bytes) == ("fake-1", len(cubin.image))


@pytest.fixture
def read_only_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this user may read but not write, and a temporary folder that it may."""
    with tempfile.TemporaryDirectory() as base:
        home, tmp = Path(base, "home"), Path(base, "tmp")
        home.mkdir()
        tmp.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp))
        for folder, mode in ((Path(base), 0o755), (tmp, 0o777), (home, 0o555)):
            folder.chmod(mode)
        # Root may write everywhere, so it becomes somebody else for a while.
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        yield home
        if root:
            os.seteuid(0)
        home.chmod(0o755)


def test_read_only_home(read_only_home: Path) -> None:
    cache = Cache(read_only_home / "attnhub")
    fake = FakeCompiler(journal=Path(tempfile.gettempdir()) / "journal")
    with pytest.warns(CacheWarning, match="cannot be written .* Set ATTNHUB_CACHE_DIR"):
        [first] = compile_kernels([spec()], cache=cache, compiler=fake)
    assert cache.root == Path(tempfile.gettempdir()) / f"attnhub-cache-{os.geteuid()}"
    # A hit needs no folder to write, so there is nothing to warn of; pytest makes warnings errors.
    [second] = compile_kernels([spec()], cache=Cache(cache.home), compiler=fake)
    assert (first.cached, second.cached) == (False, True)


def test_filled_read_only_home_serves(cache: Cache, fake: FakeCompiler) -> None:
    """A cache that was baked into an image."""
    compile_kernels([spec()], cache=cache, compiler=fake)
    cache.home.chmod(0o555)
    [cubin] = compile_kernels([spec()], cache=Cache(cache.home), compiler=fake)
    cache.home.chmod(0o755)
    assert cubin.cached


def test_file_in_the_way(
    tmp_path: Path, fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(CacheWarning, match="Not a directory"):
        compile_kernels([spec()], cache=Cache(tmp_path / "file/attnhub"), compiler=fake)


@pytest.mark.parametrize("mode", [0o777, 0o750], ids=oct)
def test_shared_fallback_is_not_trusted(
    mode: int, tmp_path: Path, fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there could have us run their code on the GPU."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = tmp_path / f"attnhub-cache-{os.geteuid()}"
    compile_kernels([spec()], cache=Cache(shared), compiler=fake)
    shared.chmod(mode)
    cache = Cache(tmp_path / "file/attnhub")
    with pytest.warns(CacheWarning):
        [cubin] = compile_kernels([spec()], cache=cache, compiler=fake)
    assert not cubin.cached
    assert cache.root != shared


def test_user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().home == tmp_path / "xdg/attnhub"


def test_prune(cache: Cache, fake: FakeCompiler) -> None:
    compile_kernels([spec(1.5), spec(2.5), spec(3.5)], cache=cache, compiler=fake)
    by_key = {e.key: e for e in cache.entries()}
    [a], [b], [c] = (
        compile_kernels([spec(f)], cache=cache, compiler=fake) for f in (1.5, 2.5, 3.5)
    )
    for days, cubin in ((9, a), (5, b), (1, c)):
        used = time.time() - days * 86400
        os.utime(by_key[cubin.key].folder / "entry.json", (used, used))
    assert cache.prune() == []
    assert [e.key for e in cache.prune(unused_days=7)] == [a.key]
    assert [e.key for e in cache.entries()] == [b.key, c.key]
    assert [e.key for e in cache.prune(max_bytes=len(c.image))] == [b.key]
    [again] = compile_kernels([spec(3.5)], cache=cache, compiler=fake)
    assert again.cached
    assert [e.key for e in cache.prune(max_bytes=0)] == [c.key]
    assert cache.entries() == []


def test_leavings_of_killed_builds_go(cache: Cache, fake: FakeCompiler) -> None:
    old, young = cache.root / "tmp/1-old", cache.root / "tmp/2-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    compile_kernels([spec()], cache=cache, compiler=fake)
    assert [f.name for f in (cache.root / "tmp").iterdir()] == ["2-young"]


def test_compile_error(cache: Cache, tmp_path: Path) -> None:
    """It shows the first real error, and what it names still exists afterwards."""
    compiler = FakeCompiler(journal=tmp_path / "journal", refuses=("2.0",))
    with pytest.raises(CompileError) as raised:
        compile_kernels([spec(1.5), spec(2.0), spec(3.5)], cache=cache, compiler=compiler)
    error = raised.value
    assert error.error == f'{error.source}(9): error: no "demo"'
    assert error.source.read_text().startswith("// kernel 'scale'")
    assert error.command == f"fake {error.source}"
    assert str(error).startswith("kernel 'scale' for sm_80 does not compile:\n")
    assert "warning: old" in error.log
    # The others were built first and stay.
    kept = compile_kernels([spec(1.5), spec(3.5)], cache=cache, compiler=compiler)
    assert all(cubin.cached for cubin in kept)


def test_progress(cache: Cache, fake: FakeCompiler) -> None:
    told: list[Progress] = []
    compile_kernels([spec(1.5)], cache=cache, compiler=fake)
    kernels = [spec(1.5), spec(2.5), spec(1.5), spec(3.5)]
    compile_kernels(kernels, cache=cache, compiler=fake, progress=told.append)
    assert [(p.done, p.total) for p in told] == [(1, 3), (2, 3), (3, 3)]
    assert [p.cubin.cached for p in told] == [True, False, False]
