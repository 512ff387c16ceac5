"""``attnhub bench``: run the benchmark suites, show results, list what there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnhub.cli import output

if TYPE_CHECKING:
    from attnhub.cli.suites import Outcome
    from attnhub.testing.results import Row

RESULTS = Path("benchmarks/results")

bench = typer.Typer(
    name="bench", help="Run benchmark suites and show their results.", no_args_is_help=True
)


@bench.command()
def run(
    suite: Annotated[
        list[str] | None,
        typer.Option(help="A suite or a glob, as in 'norm.*'; may be repeated. Default: all."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="'cpu' or 'cuda:N'. Default: the first GPU here, else the CPU.")
    ] = "",
    tag: Annotated[
        str,
        typer.Option(help="Which workloads: 'small' or 'h200'. Default: 'small' on a CPU."),
    ] = "",
    against: Annotated[
        list[str] | None,
        typer.Option(help="Also measure this backend, in the same run; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result files.")] = RESULTS,
    commit: Annotated[
        str, typer.Option(help="What is measured, where the tree came without its git history.")
    ] = "",
    as_json: output.Json = False,
) -> None:
    """Measure, print the rows and write a result file for each suite.

    Exits with 1 if a workload failed, or if nothing was measured.
    """
    from attnhub.cli import machine, suites
    from attnhub.testing import results

    # Whatever may be wrong is found before the first measurement, not after the last.
    with output.quiet():
        target = machine.present(device)
        names = suites.matching(suite or ["*"])
        suites.check_backends(against or [], names)
        suites.check_tag(tag)
        results.usable_folder(out)
    settings = suites.Settings(
        device=machine.torch_name(target),
        tag=tag or ("small" if target.type == "cpu" else "h200"),
        against=tuple(against or ()),
        commit=commit,
    )
    outcome, files = suites.Outcome(), list[Path]()
    for part in suites.run(names, settings):
        # At once, so that an end from outside loses one suite at most.
        files += _write(part, out)
        _report(part, table=not as_json)
        outcome.add(part)
    if as_json:
        output.document(
            {
                "rows": list(map(dataclasses.asdict, outcome.rows)),
                "files": list(map(str, files)),
                "skipped": outcome.skipped,
                "failed": outcome.failed,
            }
        )
    if not outcome.rows:
        output.note("nothing was measured")
    if outcome.failed or not outcome.rows:
        raise typer.Exit(1)


@bench.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help=f"Result files or folders of them. Default: {RESULTS}."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw a chart of each suite into this folder.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Show results: of each case and metric on each machine the latest measurement."""
    from attnhub.errors import InvalidArgument
    from attnhub.testing import results

    # Without a run there is no folder of results yet, which is no mistake in a path.
    found = paths or ([RESULTS] if RESULTS.exists() else [])
    rows = _latest(results.read(found))
    if not rows:
        raise InvalidArgument(
            f"no results in {', '.join(map(str, paths or [RESULTS]))}; run `attnhub bench run`"
        )
    charts = _draw(rows, png) if png else []
    if as_json:
        rows_data = list(map(dataclasses.asdict, rows))
        output.document({"rows": rows_data, "charts": list(map(str, charts))})
        return
    for group in _by_suite(rows).values():
        _show(group)
        output.line()
    for chart in charts:
        output.note(f"drew {chart}")


@bench.command("list")
def list_suites(as_json: output.Json = False) -> None:
    """Print every suite with its number of workloads by tag."""
    from attnhub.cli import suites

    with output.quiet():
        found = suites.contents()
    if as_json:
        output.document(found)
        return
    grid = output.Grid(header=("suite", "workloads", "about"))
    for entry in found:
        count = ", ".join(f"{n} {tag}" for tag, n in entry["workloads"].items())
        style = "dim" if entry["missing"] else ""
        grid.add(entry["suite"], count or "-", entry["missing"] or entry["about"], style=style)
    grid.show()


def _latest(rows: list[Row]) -> list[Row]:
    """One row for each suite, machine, case and metric: the last measured."""
    ordered = sorted(rows, key=lambda row: row.date)
    return list({row.subject: row for row in ordered}.values())


def _by_suite(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.machine), []).append(row)
    return groups


def _write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write one suite's rows; that this fails ends neither the run nor the report of the rows."""
    from attnhub.errors import AttnHubError
    from attnhub.testing import results

    if not outcome.rows:
        return []
    try:
        files = results.write(outcome.rows, folder)
    except AttnHubError as error:
        outcome.failed[f"results of {outcome.rows[0].suite}"] = str(error)
        return []
    for file in files:
        output.note(f"wrote {file}")
    return files


def _report(outcome: Outcome, *, table: bool) -> None:
    """Print what one suite gave: its rows to stdout, the rest to stderr."""
    if table and outcome.rows:
        _show(outcome.rows)
        output.line()
    for name, why in outcome.skipped.items():
        output.note(f"skipped {name}: {why}")
    for name, why in outcome.failed.items():
        output.note(f"FAILED {name}: {why}")


def _show(rows: list[Row]) -> None:
    from attnhub.testing import report as reports

    if output.on_terminal():
        output.render(reports.table(rows))
    else:
        output.line(reports.text(rows))


def _draw(rows: list[Row], folder: Path) -> list[Path]:
    from attnhub.testing import report as reports
    from attnhub.testing import results

    results.usable_folder(folder)
    charts: dict[str, tuple[Path, Path]] = {}
    for names, group in _by_suite(rows).items():
        name = first = results.slug(" ".join(names))
        number = 1
        while name in charts:  # suites "a.b" and "a-b" have one slug
            number += 1
            name = f"{first}-{number}"
        charts[name] = reports.draw(group, folder / name)
    return [file for pair in charts.values() for file in pair]
