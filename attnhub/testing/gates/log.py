"""What ptxas says of a kernel, as it stands in the logs of nvcc and of NVRTC."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnhub.errors import AttnHubError

# "ptxas info    : (C7511) Potential Performance Loss: ..." is as good as a warning.
_ADVICE = re.compile(r"\((?P<code>C\d{4})\)")
# Of the front end "k.cu(3): warning #177-D: ...", of ptxas and nvcc "ptxas warning : ...".
_WARNING = re.compile(r"\bwarning\s*(?P<code>#[\w-]+)?\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A line in which a compiler complains. ``code`` is as ``C7511`` or ``#177-D``, or empty."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a source takes, in bytes where it is memory; ``smem`` is static shared memory.

    Of several functions in it the most, and of spills the sum.
    """

    registers: int
    smem: int
    stack: int
    spill_stores: int
    spill_loads: int
    barriers: int


def usage(log: str) -> Usage:
    """What a verbose log says of resources.

    Raises:
        AttnHubError: it says nothing of registers, so nothing is known.
    """
    registers = _numbers(log, r"Used (\d+) registers")
    frames = _numbers(log, r"(\d+) bytes stack frame")
    if not registers or not frames:
        raise AttnHubError(
            "the compiler's log does not say what registers and stack a kernel takes; expected "
            f"ptxas's 'Used N registers' and 'N bytes stack frame', got:\n{log}"
        )
    return Usage(
        registers=max(registers),
        smem=max(_numbers(log, r"(\d+) bytes smem"), default=0),
        # The frames of what a kernel calls without inlining count too.
        stack=max(frames + _numbers(log, r"(\d+) bytes cumulative stack size")),
        spill_stores=sum(_numbers(log, r"(\d+) bytes spill stores")),
        spill_loads=sum(_numbers(log, r"(\d+) bytes spill loads")),
        barriers=max(_numbers(log, r"used (\d+) barriers"), default=0),
    )


def notices(log: str) -> tuple[Notice, ...]:
    """Every complaint of a log, in order, the same one once."""
    found = (
        Notice(code=match["code"] or "", text=line.strip())
        for line in log.splitlines()
        if (match := _ADVICE.search(line) or _WARNING.search(line))
    )
    return tuple(dict.fromkeys(found))


def _numbers(log: str, pattern: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, log)]
