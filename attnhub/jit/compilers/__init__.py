"""The compilers of this machine behind one protocol, and how each was found or why it was not."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from attnhub.core.env import environment
from attnhub.errors import UnknownName
from attnhub.jit.errors import NoCompiler
from attnhub.jit.spec import KernelSpec

#: The C++ of kernels, and a log that says registers, spills and what ptxas had to serialise.
_COMMON = ("--std=c++17", "--ptxas-options=--verbose")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One kernel to compile: a folder that holds its source and receives its cubin and log."""

    spec: KernelSpec
    folder: Path

    @property
    def source(self) -> Path:
        """The rendered source."""
        return self.folder / "kernel.cu"

    @property
    def cubin(self) -> Path:
        """Where the compiler puts the cubin; it exists only when it is complete."""
        return self.folder / "kernel.cubin"

    @property
    def log(self) -> Path:
        """Where the compiler puts what it said."""
        return self.folder / "build.log"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of this kernel, spelled as both NVRTC and nvcc take them."""
        return (
            f"--gpu-architecture={self.spec.arch}",
            *_COMMON,
            *self.spec.flags,
            *(f"--include-path={folder}" for folder in self.spec.folders()),
        )


Done = Callable[[Unit], None]


class Compiler(Protocol):
    """What turns sources into cubins."""

    @property
    def name(self) -> str:
        """``"nvrtc"`` or ``"nvcc"``."""
        ...

    @property
    def tag(self) -> str:
        """Name and build, short and fit for a file name: the part of a cache key that is ours."""
        ...

    def command(self, unit: Unit) -> str:
        """A command line that compiles the unit by hand, for messages."""
        ...

    def compile(self, units: Sequence[Unit], *, jobs: int, done: Done) -> None:
        """Compile every unit, ``jobs`` at a time.

        ``done`` is called as each is complete, in the thread of the caller.

        A unit that does not compile has a log and no cubin; the others go on.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the search for one compiler came to, for people to read.

    ``compiler`` is None where it cannot be used, and then ``why`` says what is missing. ``how`` is
    where it was found, as "wheel" or "CUDA_HOME".
    """

    name: str
    compiler: Compiler | None = None
    version: str = ""
    path: str = ""
    headers: str = ""
    how: str = ""
    why: str = ""


#: The compilers in the order of preference: NVRTC needs no process for each kernel.
NAMES = ("nvrtc", "nvcc")


@functools.lru_cache(maxsize=8)
def _search(name: str, cuda_home: str) -> Finding:
    """One compiler's search; its module has the compiler's name and is loaded for it only."""
    module = importlib.import_module(f"{__name__}.{name}")
    finding: Finding = module.find(cuda_home)
    return finding


def discover(cuda_home: str | None = None) -> tuple[Finding, ...]:
    """Every compiler of this machine, as ``attnhub doctor`` shows it; looked for once a process.

    Args:
        cuda_home: the toolkit to look at first, empty for none; by default what ``CUDA_HOME`` says.
    """
    home = environment().cuda_home if cuda_home is None else cuda_home
    return tuple(_search(name, home) for name in NAMES)


def choose(prefer: str = "", cuda_home: str | None = None) -> Compiler:
    """The first usable compiler, or the one called ``prefer``; looks no further than needed.

    Args:
        prefer: ``"nvrtc"`` or ``"nvcc"``.
        cuda_home: as :func:`discover` takes it.

    Raises:
        NoCompiler: there is none; the message says what to install.
        UnknownName: ``prefer`` is no compiler.
    """
    if prefer and prefer not in NAMES:
        raise UnknownName("compiler", prefer, NAMES)
    home = environment().cuda_home if cuda_home is None else cuda_home
    reasons = {}
    for name in (prefer,) if prefer else NAMES:
        finding = _search(name, home)
        if finding.compiler is not None:
            return finding.compiler
        reasons[name] = finding.why
    told = "; ".join(f"{n}: {why}" for n, why in reasons.items())
    raise NoCompiler(
        f"no compiler for CUDA kernels ({told}); install NVRTC and its headers with "
        "`pip install nvidia-cuda-nvrtc nvidia-cuda-runtime` (a CUDA build of torch brings both), "
        "or bring kernels that `attnhub warmup --output` built on another machine",
        reasons,
    )
