"""The command line of a benchmark that is a script of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from attnhub.testing import report, results

Measure = Callable[[torch.device, results.Environment], Iterable[results.Row]]


def run(
    measure: Measure,
    about: str | None,
    *,
    out: Path | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Read the options of the command line, measure, print the rows and write them.

    Args:
        measure: gives the rows of a run on a device.
        about: the script's docstring; ``--help`` shows its first line.
        out: the folder for result files where ``--out`` names none; None to write none.
        arguments: in place of those of the command line.

    Raises:
        InvalidArgument: the folder cannot be written to; found before anything is measured.

    Example:
        >>> def measure(device, here):
        ...     yield here.row("mine", "4096 tokens", "time", 12.5, "us")
        >>> if __name__ == "__main__":
        ...     script.run(measure, __doc__)
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--commit", default="", help="where the tree came without its history")
    options = parser.parse_args(arguments)
    if options.out:
        results.usable_folder(options.out)
    device = torch.device(options.device)
    rows = list(measure(device, results.environment(device, commit=options.commit)))
    print(report.text(rows))
    for file in results.write(rows, options.out) if options.out else ():
        print(f"wrote {file}")
