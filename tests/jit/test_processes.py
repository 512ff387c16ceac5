"""Processes that race for, or die in, the same cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attnhub.jit.cache import Cache
from tests.jit.fakes import FakeCompiler, in_process, spec
from tests.unit.repo_tree import ROOT


def _start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; from tests.jit.fakes import *; {code}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return out.strip()


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "locks that do nothing"])
def test_eight_processes_build_once(locks: bool, tmp_path: Path) -> None:
    """Each asks for the same kernels in another order, so careless locking would stand still."""
    folder = tmp_path / "cache"
    unlock = "" if locks else "import contextlib; Cache.lock = lambda s, k: contextlib.ExitStack();"
    if not locks:
        unlock += "contextlib.ExitStack.release = contextlib.ExitStack.close;"
    orders = [(1.5, 2.5, 3.5), (3.5, 2.5, 1.5)] * 4
    code = "print([c.image.hex()[:80] for c in sorted(made, key=lambda c: c.key)])"
    racing = [
        _start(f"{unlock} made = in_process({str(folder)!r}, {order}, seconds=0.1); {code}")
        for order in orders
    ]
    assert len({_end(process) for process in racing}) == 1
    built = FakeCompiler(journal=tmp_path / "cache.journal").built()
    assert set(built) == {"1.5", "2.5", "3.5"}
    if locks:
        assert len(built) == 3
    assert len(Cache(folder).entries()) == 3
    assert not list((folder / "tmp").iterdir())


def test_threads_build_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: in_process(str(folder), [2.0], seconds=0.1), range(8)))
    assert len({cubin.image for [cubin] in made}) == 1
    assert FakeCompiler(journal=tmp_path / "cache.journal").built() == ["2.0"]


def test_killed_build_leaves_nothing_broken(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    process = _start(f"in_process({str(folder)!r}, [2.0], dies=True)")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert Cache(folder).entries() == []
    # Its lock went with it, and so the next build does not wait.
    [cubin] = in_process(str(folder), [2.0])
    assert not cubin.cached
    assert [e.key for e in Cache(folder).entries()] == [cubin.key]


def test_hit_is_light(tmp_path: Path) -> None:
    """A hit loads neither the template engine, nor the lock library, nor a compiler, nor torch."""
    folder = tmp_path / "cache"
    [built] = in_process(str(folder), [2.0])
    heavy = ("jinja2", "filelock", "torch", "attnhub.jit.render", "attnhub.jit.compilers.log")
    out = _end(
        _start(
            f"[c] = in_process({str(folder)!r}, [2.0]); "
            f"print(c.cached, c.key, [m for m in {heavy!r} if m in sys.modules])"
        )
    )
    assert out == f"True {built.key} []"


def test_keys_are_equal_in_every_process(tmp_path: Path) -> None:
    [here] = in_process(str(tmp_path / "here"), [2.0])
    code = f"print(in_process({str(tmp_path / 'there')!r}, [2.0])[0].key)"
    assert _end(_start(code)) == here.key
    assert here.spec == spec(2.0)
