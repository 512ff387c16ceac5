"""What a compiler's log says first that is an error."""

from __future__ import annotations

import re

# As EDG ("k.cu(3): error: ..."), gcc ("k.cu:3:1: error: ..."), ptxas ("...; error   : ...",
# "ptxas fatal   : ..."), nvcc and NVRTC ("nvrtc: error: ...") write it.
_ERROR = re.compile(r"\b(error|fatal)\b( #[\w-]+)?\s*:")
_CARET = re.compile(r"^\s*\^\s*$")


def first_error(log: str) -> str:
    """The first line that is an error, with the source line and the caret below it if it has them.

    Without any, the last line that says something.
    """
    lines = log.splitlines()
    for i, line in enumerate(lines):
        if _ERROR.search(line):
            below = lines[i + 1 : i + 3]
            shown = len(below) == 2 and _CARET.match(below[1])
            return "\n".join([line.strip(), *(below if shown else ())])
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1] if spoken else "the compiler said nothing"
