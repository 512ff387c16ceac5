"""The commands, and how their errors and warnings are shown."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import typer

from attnhub.cli import output
from attnhub.cli.bench import bench
from attnhub.cli.doctor import doctor
from attnhub.cli.explain import explain
from attnhub.cli.fields import fields
from attnhub.cli.kernels import cache
from attnhub.cli.listing import list_backends
from attnhub.cli.warmup import warmup
from attnhub.errors import AttnHubError, PerformanceWarning, PluginWarning

#: What typer's parser raises for a wrong word; typer exports only this kind of it.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="attnhub",
    help="One API for attention and the small kernels round it: who serves what here, and why.",
    no_args_is_help=True,
    add_completion=False,
    # A trace of our own mistakes is wanted whole; those of users never get that far.
    pretty_exceptions_enable=False,
)
app.command("list")(list_backends)
app.command()(explain)
app.command()(doctor)
app.command()(fields)
app.command()(warmup)
app.add_typer(bench)
app.add_typer(cache)


def run(arguments: Sequence[str] | None) -> int:
    """Run the command that ``arguments`` name and return the exit status."""
    with warnings.catch_warnings():
        for category in (PluginWarning, PerformanceWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = _show_warning
        try:
            status = app(arguments, prog_name="attnhub", standalone_mode=False)
        except _UsageError as error:
            return _fail(error.format_message())
        except AttnHubError as error:
            return _fail(str(error))
        except typer.Abort:
            return _fail("interrupted")
    return int(status or 0)


def _fail(text: str) -> int:
    if text:  # a bare `attnhub` has printed its help instead
        output.note(f"error: {text}")
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    output.note(f"warning: {message}")
