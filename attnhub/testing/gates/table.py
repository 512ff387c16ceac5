"""The table of all gates that a session ends with. Rows are plain text, fit to cross processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attnhub.jit import KernelSpec
from attnhub.testing.gates.building import Build
from attnhub.testing.gates.gate import Gate

#: The name under which a test records its row, for attnhub.testing.pytest_plugin.
PROPERTY = "attnhub_gate"

Row = dict[str, str]

_COLUMNS = (
    *("kernel", "arch", "compiler", "registers", "smem", "spills", "CPU s", "cubin kB"),
    "instructions",
)
_TEXT = ("kernel", "arch", "compiler", "instructions")


def row(build: Build, gate: Gate) -> Row:
    """The row of a kernel; of its instructions, those that the gate names and that occur."""
    over = " (over)" if build.cpu_seconds > gate.cpu_seconds else ""
    if build.instructions is None:
        counted = f"not counted: {build.no_instructions}"
    else:
        counts = {name: build.count(name) for name in (*gate.census, *gate.forbidden)}
        counted = ", ".join(f"{name} {n}" for name, n in counts.items() if n)
    return {
        **_names(build.spec, build.compiler),
        "registers": str(build.registers),
        "smem": str(build.smem),
        "spills": str(build.spill_stores + build.spill_loads),
        "CPU s": f"{build.cpu_seconds:.2f}{over}",
        "cubin kB": f"{len(build.image) / 1000:.1f}",
        "instructions": counted,
    }


def skipped(spec: KernelSpec, compiler: str, why: str) -> Row:
    """The row of a kernel that was not compiled."""
    return {**_names(spec, compiler), "why": why}


def _names(spec: KernelSpec, compiler: str) -> Row:
    return {"kernel": spec.name, "arch": spec.arch, "compiler": compiler}


def lines(rows: Iterable[Row]) -> list[str]:
    """The table as text, and below it what was left out and why."""
    rows = sorted(rows, key=lambda r: (r["kernel"], r["arch"], r["compiler"]))
    made = [r for r in rows if "why" not in r]
    left_out = Counter((r["compiler"], r["why"]) for r in rows if "why" in r)
    told = [f"skipped: {n} by {compiler}: {why}" for (compiler, why), n in left_out.items()]
    if not made:
        return [*told, "no kernel was compiled, so nothing was checked"]
    cells = [list(_COLUMNS), *([r[name] for name in _COLUMNS] for r in made)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shown = []
    for line in cells:
        padded = (
            cell.ljust(width) if name in _TEXT else cell.rjust(width)
            for cell, width, name in zip(line, widths, _COLUMNS, strict=True)
        )
        shown.append("  ".join(padded).rstrip())
    return [*shown, *told]
