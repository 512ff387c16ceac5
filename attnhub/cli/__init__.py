"""The command line: ``attnhub list | explain | fields | doctor | warmup | bench | cache``.

Every module is imported when its command runs, so that ``attnhub --help`` and ``attnhub list`` load
no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 the answer is no or something is broken, 2 wrong use.

    Args:
        arguments: the words after ``attnhub``; default those of this process.
    """
    from attnhub.cli.app import run

    raise SystemExit(run(arguments))
