"""``attnhub fields``: the facts of an op, as capability sheets and ``explain`` name them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from attnhub.cli import output


def fields(
    op: Annotated[str, typer.Argument(help="An op, as `attnhub list` names it.")],
    as_json: output.Json = False,
) -> None:
    """Print the fields of an op's problems: what a sheet must mention, and what it may."""
    from attnhub.core import discovery
    from attnhub.core.problem import fact_fields

    with output.quiet():
        cls = discovery.default().problem_class(op)
    rows = [_row(name, field) for name, field in fact_fields(cls).items()]
    if as_json:
        output.document({"op": op, "fields": rows, "sizes": list(cls.sizes)})
        return
    grid = output.Grid(title=op, header=("field", "a sheet that leaves it out", "values, such as"))
    for row in rows:
        left_out = "is refused: it must be mentioned"
        if not row["required"]:
            left_out = f"takes {row['default']} only"
        grid.add(row["name"], left_out, ", ".join(row["values"]))
    grid.show()
    output.line(f"sizes, for explain and cost models: {', '.join(cls.sizes)}")


def _row(name: str, field: dataclasses.Field[Any]) -> dict[str, Any]:
    from attnhub.core.problem import show

    required = field.default is dataclasses.MISSING
    return {
        "name": name,
        "required": required,
        "default": None if required else show(field.default),
        "values": [show(value) for value in field.metadata["domain"]],
    }
