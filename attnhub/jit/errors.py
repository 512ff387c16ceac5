"""What can go wrong between a kernel source and its launch.

AttnHubError
├── CompileError (RuntimeError)   the compiler refused a kernel
├── NoCompiler (RuntimeError)     this machine has neither NVRTC nor nvcc
└── DriverError (RuntimeError)    the driver refused a call, or there is none

CacheWarning (RuntimeWarning)     a folder of kernels that cannot be written, or is damaged

Each exception keeps its facts as attributes, so that a program can act on them.
"""

from __future__ import annotations

from pathlib import Path

from attnhub.errors import AttnHubError


class CompileError(AttnHubError, RuntimeError):
    """A kernel that does not compile.

    Attributes:
        kernel: name of the kernel and its architecture.
        command: what was run; for NVRTC, its options as a command line.
        source: the rendered source, kept so that it can be compiled by hand.
        error: the first real error of the log.
        log: everything that the compiler said.
    """

    def __init__(self, *, kernel: str, command: str, source: Path, error: str, log: str) -> None:
        self.kernel, self.command, self.source = kernel, command, source
        self.error, self.log = error, log
        super().__init__(
            f"{kernel} does not compile:\n{error}\n"
            f"source: {source} (build.log beside it holds the rest)\ncommand: {command}"
        )


class NoCompiler(AttnHubError, RuntimeError):
    """There is no compiler for CUDA kernels here; ``reasons`` says why, by compiler."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class DriverError(AttnHubError, RuntimeError):
    """What the CUDA driver refused.

    Attributes:
        call: the function of libcuda; empty if there is no driver.
        status: its result as a number, 0 if the function was not called.
        name: the result's name, as ``CUDA_ERROR_INVALID_VALUE``.
    """

    def __init__(self, message: str, *, call: str = "", status: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.call, self.status, self.name = call, status, name


class CacheWarning(RuntimeWarning):
    """Kernels are not kept where they should be; the rest goes on."""
