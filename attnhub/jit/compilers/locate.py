"""Where CUDA's parts may lie: pip's wheels, torch, the environment's prefix, a toolkit."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The headers of CUDA that kernels include; what they say is part of the compiler's build.
HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp8.h")
_HEADERS_HPP = (*HEADERS, "cuda_fp8.hpp")

_TOOLKIT = Path("/usr/local/cuda")


def package_folders(name: str) -> list[Path]:
    """The folders of a package or namespace, without importing it."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    return [Path(f) for f in (found.submodule_search_locations or ())] if found else []


def torch_cuda_major() -> str:
    """The major version of CUDA that torch was built for, without importing torch; "" for none.

    The driver of a machine where torch runs also loads cubins of that version.
    """
    for folder in package_folders("torch"):
        try:
            text = (folder / "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        if match := re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.", text, re.MULTILINE):
            return match[1]
    return ""


def roots(cuda_home: str) -> Iterator[tuple[str, Path]]:
    """Folders that may hold ``lib``, ``include`` and ``bin``, each with how it was found.

    In order of preference; a later one is not looked at when an earlier one serves.
    """
    if cuda_home:
        yield "CUDA_HOME", Path(cuda_home)
    major = torch_cuda_major()
    for nvidia in package_folders("nvidia"):
        wheels = [(p.name.removeprefix("cu"), p) for p in nvidia.glob("cu[0-9]*")]
        # The wheels of CUDA 12 have a folder for each part.
        wheels += [("12", nvidia / part) for part in ("cuda_nvrtc", "cuda_nvcc")]
        wheels.sort(key=lambda wheel: wheel[0] != major)
        yield from (("wheel", path) for _, path in wheels)
    yield from (("torch", folder) for folder in package_folders("torch"))
    yield "prefix", Path(sys.prefix)
    yield "toolkit", _TOOLKIT


def cuda_headers(root: Path) -> Path | None:
    """The folder of CUDA's headers that belongs to a root."""
    places = (
        root / "include",
        root.parent / "cuda_runtime/include",
        *sorted(root.glob("targets/*/include")),
    )
    return next((p for p in places if (p / HEADERS[0]).is_file()), None)


def build_of(files: Iterable[Path | None], *, text: str = "") -> str:
    """Twelve digits that differ between builds of a compiler.

    Of a large file its size, beginning and end are read: an ELF file's build number, tables and
    addresses lie there, and hashing 100 MB at each start would cost more than a kernel.
    """
    total = hashlib.sha256(text.encode())
    for file in filter(None, files):
        size = file.stat().st_size
        with file.open("rb") as f:
            total.update(f"{file.name} {size}".encode())
            total.update(f.read(1 << 16))
            f.seek(max(0, size - (1 << 16)))
            total.update(f.read())
    return total.hexdigest()[:12]


def headers_digest(folder: Path | None) -> str:
    """The hash of the CUDA headers that kernels may include."""
    if folder is None:
        return ""
    total = hashlib.sha256()
    for name in _HEADERS_HPP:
        if (folder / name).is_file():
            total.update((folder / name).read_bytes())
    return total.hexdigest()
