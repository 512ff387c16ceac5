"""Compiles a kernel for the CPU, once for each content of its sources."""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attnhub
from attnhub.testing.emulator.errors import BuildFailed

#: ``attnhub/...`` headers: give it to nvcc as ``-I`` too.
INCLUDE_DIR = Path(attnhub.__file__).parent / "include"
_WRAPPERS = INCLUDE_DIR / "attnhub" / "ptx"
_SOURCE_DIR = Path(__file__).parent / "src"
_FLAGS = (
    "-std=c++20",
    "-g1",  # lines, so that errors name them
    "-fno-optimize-sibling-calls",  # a wrapper called last still has a line
    "-fstack-clash-protection",  # an overflow meets the guard page, however large
    # Some distributions turn this on, and its longjmp refuses to leave one fiber for another.
    "-U_FORTIFY_SOURCE",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wno-unknown-pragmas",
)
# A kernel is compiled more often than it runs long enough for -O2 to pay; the engine is not.
_KERNEL, _ENGINE = "-O1", "-O2"
_SITE = re.compile(r"@\{(0x[0-9a-f]+)\}")


@functools.cache
def _compiler() -> tuple[str, str]:
    """The C++ compiler and its version."""
    path = shutil.which("g++") or shutil.which("clang++")
    if path is None:
        raise BuildFailed("no C++ compiler: neither g++ nor clang++ is on the PATH; install one")
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return path, shown.stdout.partition("\n")[0]


def _cache_dir() -> Path:
    folder = Path(tempfile.gettempdir()) / f"attnhub-emulator-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BuildFailed(f"{folder} belongs to another user: set TMPDIR to a folder of yours")
    return folder


def _digest(arguments: Sequence[str], folders: Sequence[Path]) -> str:
    """Of the command and of every source under the folders that the compiler may include from."""
    digest = hashlib.sha256(repr((_FLAGS, arguments, _compiler())).encode())
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".h", ".cc", ".cuh"):
                digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:24]


def keep_source(name: str, text: str) -> Path:
    """A file of the cache with this text; its name is short, as errors show it."""
    folder = _cache_dir() / hashlib.sha256(text.encode()).hexdigest()[:24]
    file = folder / f"{name}.cu"
    if not file.exists():
        folder.mkdir(exist_ok=True)
        # Renamed when complete: whoever finds the name finds the whole text.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            part = Path(scratch) / file.name
            part.write_text(text, encoding="utf-8")
            part.replace(file)
    return file


def _compile(name: str, arguments: Sequence[str], folders: Sequence[Path]) -> Path:
    """A shared library from the cache, built first if it is not there."""
    library = _cache_dir() / f"{name}-{_digest(arguments, folders)}.so"
    if library.exists():
        return library
    # Renamed when complete: whoever finds the name finds a whole library.
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        part = Path(scratch) / library.name
        command = [_compiler()[0], *_FLAGS, *arguments, "-o", str(part)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            first = errors[0] if errors else done.stderr.strip()
            raise BuildFailed(f"{name}: {first}", done.stderr)
        part.replace(library)
    return library


@functools.cache
def _engine() -> Path:
    folder = _SOURCE_DIR / "attnhub_emulator"
    return _compile("engine", [_ENGINE, str(folder / "all.cc")], [folder])


def build(
    *,
    header: str,
    kernel: str,
    fields: Sequence[str],
    include_dirs: Sequence[Path],
) -> Path:
    """The shared library of one kernel.

    Raises:
        BuildFailed: there is no compiler, or it refuses the source.
    """
    folders = [INCLUDE_DIR, _SOURCE_DIR, *include_dirs]
    arguments = [
        _KERNEL,
        "-Wl,-Bsymbolic",  # an extern "C" kernel is ours, whatever else in the process has its name
        "-DATTNHUB_EMULATOR",
        f'-DATTNHUB_HEADER="{header}"',
        f"-DATTNHUB_KERNEL={kernel}",
        f"-DATTNHUB_FIELDS={' '.join(f'FIELD({name})' for name in fields)}",
        *(f"-I{folder}" for folder in folders),
        str(_SOURCE_DIR / "attnhub_emulator" / "entry.cc"),
        str(_engine()),
    ]
    return _compile(Path(header).stem, arguments, folders)


def name_sites(text: str, library: Path) -> str:
    """Put ``file:line`` of the kernel where the engine wrote an offset into its library."""
    offsets = sorted(set(_SITE.findall(text)))
    addr2line = shutil.which("addr2line")
    named: dict[str, str] = {}
    if addr2line is not None:
        for offset in offsets:
            command = [addr2line, "-i", "-e", str(library), offset]
            shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            frames = [line.partition(" (")[0] for line in shown.splitlines()]
            # Innermost first: the wrappers, then the line of the kernel that called one.
            own = [frame for frame in frames if not frame.startswith(str(_WRAPPERS))]
            if own and not own[0].startswith("?"):
                named[offset] = Path(own[0]).name
    return _SITE.sub(lambda m: named.get(m[1], f"library offset {m[1]}"), text)
