"""``attnhub explain``: who would serve a call, what it should cost, and why not the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from attnhub.cli import output

if TYPE_CHECKING:
    from attnhub.core.decision import Decision, Rejection


def explain(
    op: Annotated[str, typer.Argument(help="An op, as 'attention'; `attnhub list` has all.")],
    facts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FACT=VALUE ...",
            help="What the call is like: num_qo_heads=64 head_dim=128 dtype=bfloat16 kv=paged:16 "
            "batch=64. Two head dims are 192x128; dtypes of q, kv and output that differ are "
            "separated by commas.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="'cuda:0', 'cpu', or any device by name: 'h100', 'sm_89'. "
            "Default: the first GPU here, else the CPU."
        ),
    ] = "",
    variant: Annotated[
        str, typer.Option(help="As in 'causal,soft_cap=30,window=1024:0,rope=500000'.")
    ] = "",
    backend: Annotated[str, typer.Option(help="Require this backend.")] = "",
    as_json: output.Json = False,
) -> None:
    """Print the decision for a call, without tensors and without running anything.

    Exits with 1 if no backend fits.
    """
    with output.quiet():
        decision = _decide(op, facts or [], device, variant, backend)
    if as_json:
        output.document(json.loads(decision.to_json()))
    elif output.on_terminal():
        _show(decision)
    else:
        output.line(str(decision))
    if decision.chosen is None:
        raise typer.Exit(1)


def _decide(op: str, words: list[str], device: str, variant: str, backend: str) -> Decision:
    import attnhub
    from attnhub.cli.facts import parse_facts, parse_variant
    from attnhub.cli.machine import described
    from attnhub.core import discovery

    facts = parse_facts(words, discovery.default().problem_class(op))
    if variant:
        facts["variant"] = parse_variant(variant)
    return attnhub.explain(op, device=described(device), backend=backend, **facts)


def _show(decision: Decision) -> None:
    chosen = decision.chosen
    verdict = f"{chosen.name}, {chosen.estimate} expected" if chosen else "no backend fits"
    output.line(f"{decision.op} on {decision.device}: {verdict}")
    output.line(f"  problem  {decision.problem}\n  sizes    {decision.extent}")
    grid = output.Grid(header=("backend", "plugin", "expected", "verdict"))
    for candidate in decision.ranked:
        first = candidate is chosen
        text = "chosen" if first else "fits, ranked below"
        if candidate.estimate.detail:
            text += f"\n{candidate.estimate.detail}"
        style = "bold green" if first else "green"
        grid.add(candidate.name, candidate.plugin, str(candidate.estimate), text, style=style)
    for rejection in decision.rejected:
        expected = str(rejection.estimate) if rejection.estimate else "-"
        style = "dim" if rejection.install else ""
        grid.add(rejection.name, rejection.plugin, expected, _why(rejection), style=style)
    grid.show()
    for label, lines in (("override", decision.overrides), ("note", decision.notes)):
        for text in lines:
            output.line(f"  {label:<8} {text}")


def _why(rejection: Rejection) -> str:
    reasons = [str(reason) for reason in rejection.reasons]
    return "\n".join([*reasons, *([rejection.install] if rejection.install else [])])
