"""The fake libcuda of ``fake_libcuda.cc``, compiled and put in the driver's place."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.jit import driver
from attnhub.jit.compilers import locate

SOURCE = Path(__file__).with_name("fake_libcuda.cc")
_FOLDER = tempfile.TemporaryDirectory(prefix="attnhub-fake-cuda-")  # goes with the process

#: What the fake hands out.
LIBRARY, KERNEL, CONTEXT = 0x1111111100, 0x2222222200, 0x4444444400


class Fake:
    """One fake driver, with a memory of its own."""

    def __init__(self, library: Path) -> None:
        self.library = str(library)
        self._loaded = ctypes.CDLL(self.library)
        self._loaded.fake_journal.restype = ctypes.c_char_p

    def set(self, name: str, value: int) -> None:
        """Decide what it answers: the result of a function, "devices", "parameter size" ..."""
        self._loaded.fake_set(name.encode(), value)

    def journal(self, begin: str = "") -> list[str]:
        """What it was asked, of lines that begin so."""
        lines = self._loaded.fake_journal().decode().splitlines()
        return [line for line in lines if line.startswith(begin)]


@functools.cache
def _compiled(*defines: str) -> Path:
    headers = [locate.cuda_headers(root) for _, root in locate.roots("")]
    folder = next((h for h in headers if h is not None and (h / "cuda.h").is_file()), None)
    if shutil.which("g++") is None or folder is None:
        pytest.skip("the fake driver needs g++ and cuda.h (pip install nvidia-cuda-runtime)")
    made = Path(_FOLDER.name) / f"libcuda{'-'.join(defines)}.so"
    command = ["g++", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{folder}", str(SOURCE)]
    options = [*(f"-D{define}" for define in defines), "-o", str(made)]
    subprocess.run([*command, *options], check=True)
    return made


def make(folder: Path, *defines: str) -> Fake:
    """A fake of its own state: a library is loaded once for each file."""
    return Fake(shutil.copy(_compiled(*defines), folder / "libcuda.so.1"))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A fake that is the driver while a test runs."""
    fake = make(folder)
    monkeypatch.setattr(driver, "_LIBRARY", fake.library)
    driver.get.cache_clear()
    yield fake
    driver.get.cache_clear()
