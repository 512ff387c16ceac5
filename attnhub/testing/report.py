"""Show result rows: a terminal table, plain text, and a chart per suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from attnhub.errors import AttnHubError, InvalidArgument
from attnhub.testing.results import Row

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = "attnhub"
#: Facts of a whole run: where all rows agree on one it is in the title, else a column.
_RUN: dict[str, Callable[[Row], str]] = {
    "suite": lambda row: row.suite,
    "machine": lambda row: row.machine,
    "day": lambda row: row.date[:10],
    "commit": lambda row: row.short_commit,
    "torch version": lambda row: row.versions.get("torch", ""),
}
_TEXT_COLUMNS = (*_RUN, "case", "metric")
# Told apart by colour-blind readers and in grey print; AttnHub always has the first.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_WIDTH = 9  # inches
_DPI = 150
_GAP = 0.7  # between the bars of two cases, in bars


def table(rows: Iterable[Row]) -> Table:
    """Return the rows as a rich table, a line each, with the advantage over every peer."""
    title, (header, *lines) = _cells(list(rows))
    result = Table(title=title)
    for name in header:
        result.add_column(name, justify="left" if name in _TEXT_COLUMNS else "right")
    for line in lines:
        result.add_row(*line)
    return result


def text(rows: Iterable[Row]) -> str:
    """Return the same table in plain text, for logs and files."""
    title, cells = _cells(list(rows))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [title] if title else []
    for line in cells:
        padded = [
            cell.ljust(width) if name in _TEXT_COLUMNS else cell.rjust(width)
            for cell, width, name in zip(line, widths, cells[0], strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cells(rows: list[Row]) -> tuple[str, list[list[str]]]:
    """Return a title, and header and lines; what all rows share is in the title."""
    shared, columns = _run_facts(rows)
    columns |= {
        "case": [row.case for row in rows],
        "metric": [row.metric for row in rows],
        OURS: [f"{_number(row.value)} {row.unit}" for row in rows],
        "of ceiling": [
            "" if row.share_of_ceiling is None else f"{row.share_of_ceiling:.0%}" for row in rows
        ],
    }
    columns |= {peer: [_peer_cell(row, peer) for row in rows] for peer in _peer_names(rows)}
    if not any(columns["of ceiling"]):
        del columns["of ceiling"]
    return shared, [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _run_facts(rows: Sequence[Row]) -> tuple[str, dict[str, list[str]]]:
    """Return a title of the facts of a run that all rows share, and the other facts as columns."""
    columns = {name: [fact(row) for row in rows] for name, fact in _RUN.items()}
    shared = {name: cells[0] for name, cells in columns.items() if len(set(cells)) == 1}
    if shared.get("torch version"):
        shared["torch version"] = f"torch {shared['torch version']}"
    where = [shared.pop(name) for name in ("suite", "machine") if name in shared]
    title = ", ".join(filter(None, [" on ".join(where), *shared.values()]))
    return title, {name: cells for name, cells in columns.items() if len(set(cells)) > 1}


def _peer_cell(row: Row, peer: str) -> str:
    if peer not in row.peers:
        return ""
    return f"{_number(row.peers[peer])} ({row.advantage(peer):.2f}x)"


def draw(rows: Iterable[Row], path: Path | str) -> tuple[Path, Path]:
    """Draw one suite as grouped bars, a panel per metric, and return the PNG and the SVG.

    ``path`` is where the suite's results lie, or any path: its ``.json``, ``.png`` or ``.svg``
    ending is replaced. The rows are of one suite and one machine.

    Raises:
        InvalidArgument: rows of several suites or machines, or a path that cannot be written.
        AttnHubError: matplotlib is not installed.
    """
    rows = list(rows)
    suites = sorted({(row.suite, row.machine) for row in rows})
    if len(suites) != 1:
        raise InvalidArgument(f"a chart shows one suite on one machine, the rows hold {suites}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise AttnHubError("charts need matplotlib: pip install 'attnhub[bench]'") from error
    path = Path(path)
    stem = path.stem if path.suffix in (".json", ".png", ".svg") else path.name
    png, svg = path.with_name(f"{stem}.png"), path.with_name(f"{stem}.svg")
    # A fixed salt and no date: the same rows give the same file, so a diff shows a change.
    with rc_context({"svg.hashsalt": "attnhub", "font.size": 9}):
        # Without pyplot no window is opened and no global state touched: savefig draws with Agg.
        figure = Figure(layout="constrained")
        _fill(figure, rows)
        try:
            figure.savefig(png, dpi=_DPI)
            figure.savefig(svg, metadata={"Date": None})
        except OSError as error:
            raise InvalidArgument(f"{path}: no chart can be written there: {error}") from error
    return png, svg


def _fill(figure: Figure, rows: Sequence[Row]) -> None:
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.metric, row.unit), []).append(row)
    names = [OURS, *_peer_names(rows)]
    colours = dict(zip(names, cycle(_COLOURS), strict=False))
    bars = [sum(1 + len(row.peers) + _GAP for row in panel) for panel in panels.values()]
    figure.set_size_inches(_WIDTH, 0.2 * sum(bars) + 0.6 * len(panels) + 0.8)
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=bars)[:, 0]
    shown: dict[str, Artist] = {}
    for axis, ((metric, unit), panel) in zip(axes, panels.items(), strict=True):
        shown |= _bars(axis, panel, colours)
        better = "smaller" if panel[0].smaller_is_better else "larger"
        axis.set_xlabel(f"{metric} [{unit}], {better} is better")
    figure.legend(
        [shown[name] for name in names], names, loc="outside lower center", ncols=min(len(names), 6)
    )
    title, differing = _run_facts(rows)
    figure.suptitle(", ".join([title, *(" ".join(dict.fromkeys(f)) for f in differing.values())]))


def _bars(axis: Axes, rows: Sequence[Row], colours: dict[str, str]) -> dict[str, Artist]:
    """Draw the rows from top to bottom, bars of equal height, and return one bar of each name."""
    shown: dict[str, Artist] = {}
    place = 0.0
    ticks = []
    for row in rows:
        values = {OURS: row.value} | row.peers
        for name, value in values.items():
            bar = axis.barh(place, value, 1.0, align="edge", color=colours[name])
            axis.bar_label(bar, [_label(row, name, value)], padding=3)
            shown[name] = bar.patches[0]
            place += 1
        ticks.append(place - len(values) / 2)
        place += _GAP
    axis.set_yticks(ticks, [row.case for row in rows])
    axis.set_ylim(place - _GAP / 2, -_GAP / 2)
    axis.margins(x=0.3)  # room for the labels
    axis.spines[["top", "right"]].set_visible(False)
    return shown


def _label(row: Row, name: str, value: float) -> str:
    if name == OURS and row.share_of_ceiling is not None:
        return f"{_number(value)} ({row.share_of_ceiling:.0%} of ceiling)"
    return _number(value)


def _peer_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(peer for row in rows for peer in row.peers))


def _number(value: float) -> str:
    """Return three significant digits, or all of the integer part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
