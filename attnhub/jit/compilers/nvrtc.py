"""NVRTC through ctypes: kernels compile inside this process, without a toolkit or a GPU."""

from __future__ import annotations

import ctypes
import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnhub.jit.compilers import Done, Finding, Unit, locate

_INSTALL = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvrtc:
    """One libnvrtc and the CUDA headers that go with it."""

    library: Path
    headers: Path
    tag: str
    name: str = "nvrtc"

    def command(self, unit: Unit) -> str:
        return shlex.join(["nvrtc", *self._options(unit), str(unit.source)])

    def compile(self, units: Sequence[Unit], *, jobs: int, done: Done) -> None:
        from concurrent.futures import ThreadPoolExecutor, as_completed

        # Threads suffice: ctypes gives up the interpreter's lock while NVRTC works.
        with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="nvrtc") as pool:
            work = {pool.submit(self._compile, unit): unit for unit in units}
            try:
                for future in as_completed(work):
                    if future.result():
                        done(work[future])
            finally:
                for future in work:
                    future.cancel()

    def _options(self, unit: Unit) -> list[str]:
        return [*unit.options, f"--include-path={self.headers}"]

    def _compile(self, unit: Unit) -> bool:
        cubin, log = _compile(_load(self.library), unit, self._options(unit))
        unit.log.write_text(log, encoding="utf-8")
        if cubin:
            unit.cubin.write_bytes(cubin)
        return bool(cubin)


def find(cuda_home: str = "") -> Finding:
    """Look for a libnvrtc that has its builtins and CUDA's headers near it."""
    why = f"no libnvrtc in pip's packages, torch or a CUDA toolkit; {_INSTALL}"
    for how, root in locate.roots(cuda_home):
        library = _library(root)
        if library is None:
            continue
        headers = locate.cuda_headers(root)
        if headers is None:
            why = f"{library} is there, but {locate.HEADERS[0]} is not; {_INSTALL}"
            continue
        files = (library, builtins(library))
        build = locate.build_of(files, text=locate.headers_digest(headers))
        return Finding(
            name="nvrtc",
            compiler=Nvrtc(library=library, headers=headers, tag=f"nvrtc-{build}"),
            version=(builtins(library) or library).name.partition(".so.")[2],
            path=str(library),
            headers=str(headers),
            how=how,
        )
    return Finding(name="nvrtc", why=why)


def _library(root: Path) -> Path | None:
    """The libnvrtc of a root; torch's own copy has a hash in its name."""
    for folder in ("lib", "lib64"):
        for pattern in ("libnvrtc.so.[0-9]*", "libnvrtc-????????.so.[0-9]*"):
            if found := sorted((root / folder).glob(pattern)):
                return found[-1]
    return None


def builtins(library: Path) -> Path | None:
    """The library that NVRTC opens by name when it compiles."""
    found = sorted(library.parent.glob("libnvrtc-builtins*.so*"))
    return next((path for path in found if ".alt." not in path.name), None)


@functools.cache
def _load(library: Path) -> ctypes.CDLL:
    # NVRTC opens its builtins by name, and the folder is on no search path: it must be open before.
    if (inner := builtins(library)) is not None:
        ctypes.CDLL(str(inner), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(library))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _compile(nvrtc: ctypes.CDLL, unit: Unit, options: list[str]) -> tuple[bytes, str]:
    """The cubin, empty if it does not compile, and the log."""
    program = ctypes.c_void_p()
    name, source = str(unit.source).encode(), unit.source.read_bytes()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None))
    try:
        words = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), words)
        log = _text(nvrtc, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if status:
            return b"", log or f"error: {nvrtc.nvrtcGetErrorString(status).decode()}"
        return _text(nvrtc, "CUBIN", program), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status).decode()}")
