"""What can go wrong between a kernel source and its launch.

AttnHubError
└── KernelError (RuntimeError)    from attnhub.errors: what docs/decisions/0003 says of a backend
    ├── CompileError              the compiler refused a kernel
    ├── NoCompiler                this machine has neither NVRTC nor nvcc
    ├── DriverError               the driver refused a call, or there is none
    └── LaunchError               a kernel was set up for what it or the device does not allow

CacheWarning (RuntimeWarning)     a folder of kernels that cannot be written, or is damaged

Each exception keeps its facts as attributes, so that a program can act on them.
"""

from __future__ import annotations

from pathlib import Path

from attnhub.errors import KernelError

#: Results of the driver that every backend would get: no memory, a kernel before went wrong, so
#: that nothing runs any more, or the stream is being captured.
_OF_THE_DEVICE = frozenset({2, 700, 702, 710, *range(714, 720), 900})


class CompileError(KernelError):
    """A kernel that does not compile: a defect of whoever wrote it, or of the compiler.

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

    @property
    def brief(self) -> str:
        """The first error, and that it is to be reported."""
        line = self.error.partition("\n")[0]
        return (
            f"{self.kernel} does not compile: {line}; this is a defect, so please report it to "
            f"whoever maintains the kernel, with {self.source} and the build.log beside it"
        )


class NoCompiler(KernelError):
    """There is no compiler for CUDA kernels here; ``reasons`` says why, by compiler."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class DriverError(KernelError):
    """What the CUDA driver refused.

    Attributes:
        call: the function of libcuda; empty if there is no driver.
        status: its result as a number, 0 if the function was not called.
        name: the result's name, as ``CUDA_ERROR_INVALID_VALUE``.
    """

    def __init__(self, message: str, *, call: str = "", status: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.call, self.status, self.name = call, status, name
        self.is_of_backend = status not in _OF_THE_DEVICE


class LaunchError(KernelError):
    """A kernel was set up for what it, or the device, does not allow: a defect of its host side.

    As too many threads, too much shared memory, or parameters that are not those of its source.
    """


class CacheWarning(RuntimeWarning):
    """Kernels are not kept where they should be; the rest goes on."""
