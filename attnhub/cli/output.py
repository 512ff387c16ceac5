"""How commands print: one JSON document, a table on a terminal, or lined-up text in a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

#: The option every command has.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def line(text: str = "") -> None:
    """Print one line to stdout."""
    typer.echo(text)


def note(text: str) -> None:
    """Print one line of progress or side information, to stderr."""
    typer.echo(text, err=True)


def counted(count: int, what: str) -> str:
    """A number of things: ``"1 kernel"``, ``"2 kernels"``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def document(data: Any) -> None:
    """Print ``data`` as JSON."""
    typer.echo(json.dumps(data, indent=2))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what foreign code prints while it loads or runs to stderr: stdout is the answer's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def on_terminal() -> bool:
    """Whether stdout is a terminal, and so worth colours and wrapping."""
    return sys.stdout.isatty()


def render(item: RenderableType) -> None:
    """Print a rich object."""
    from rich.console import Console

    Console().print(item)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr if that is a terminal; call it with a name, how many are done, and of what.

    Example::

        with progress("compiling") as tell:
            tell("merge", 3, 12)
    """
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    last = TextColumn("{task.description}", markup=False)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), last)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield tell


@dataclass(slots=True, kw_only=True)
class Grid:
    """A table; a cell may hold several lines. Only the last column is wrapped."""

    title: str = ""
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    def add(self, *cells: str, style: str = "") -> None:
        """Append a row; ``style`` colours it on a terminal."""
        self.rows.append(cells)
        self.styles.append(style)

    def show(self) -> None:
        """Print it."""
        if on_terminal():
            self._show_rich()
        else:
            line(str(self))

    def __str__(self) -> str:
        lines = [cells for row in (self.header, *self.rows) for cells in _unfold(row)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines]
        return "\n".join([*([self.title] if self.title else []), *(f"  {t}" for t in text)])

    def _show_rich(self) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        # Text, not str: a cell such as "[op=]name" is no markup.
        table = Table(title=Text(self.title), title_justify="left", box=box.SIMPLE_HEAD)
        for i, name in enumerate(self.header):
            last = i == len(self.header) - 1
            table.add_column(Text(name), no_wrap=not last, overflow="fold")
        for cells, style in zip(self.rows, self.styles, strict=True):
            table.add_row(*map(Text, cells), style=style)
        render(table)


def _unfold(row: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A row whose cells have several lines as several rows of one line."""
    cells = [cell.split("\n") for cell in row]
    height = max(map(len, cells))
    return [tuple(c[i] if i < len(c) else "" for c in cells) for i in range(height)]
