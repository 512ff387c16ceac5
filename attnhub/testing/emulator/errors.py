"""What the emulator raises.

EmulatorError (AttnHubError, RuntimeError)
├── EmulatorDeadlock      no thread can go on
├── EmulatorTimeout       the grid did not finish in time: a loop that polls and never ends
├── OutOfBounds           an access outside shared memory, outside every tensor, or to a const one
├── RaceDetected          shared memory used by two threads with no barrier between, or too early
├── Misuse                what the hardware leaves undefined: a misaligned address, lanes of a warp
│                         at different instructions, an mbarrier that too many threads arrive at
└── BuildFailed           the kernel does not compile
"""

from __future__ import annotations

from attnhub.errors import AttnHubError


class EmulatorError(AttnHubError, RuntimeError):
    """A kernel that is wrong. ``dump`` tells where every thread of the running CTAs stood."""

    def __init__(self, message: str, dump: str = "") -> None:
        super().__init__(f"{message}\n{dump}" if dump else message)
        self.dump = dump


class EmulatorDeadlock(EmulatorError):
    """No thread can go on; the dump says who waits on what."""


class EmulatorTimeout(EmulatorError):
    """The grid did not finish within ``Launch.timeout_s``."""


class OutOfBounds(EmulatorError):
    """An access outside shared memory or outside every tensor, or a write to a const tensor."""


class RaceDetected(EmulatorError):
    """Shared memory that two threads use with nothing that orders them, or before it arrives."""


class Misuse(EmulatorError):
    """An operation whose result the hardware leaves undefined."""


class BuildFailed(EmulatorError):
    """The kernel does not compile; the message holds the compiler's first error."""
