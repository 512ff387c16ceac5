"""The parts of README.md that are made from the code.

``python -m tests.docs.test_readme`` rewrites them.
"""

from __future__ import annotations

import contextlib
import io
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

import attnhub
from attnhub import Paged, Variant
from attnhub.cli import suites
from attnhub.cli.suites import overhead
from attnhub.core.capability import Capability, Subset
from attnhub.plugin import Backend, isolated
from attnhub.testing import results
from attnhub.testing.results import Environment, Row

README = Path(__file__).parents[2] / "README.md"
RESULTS = README.parent / "benchmarks" / "results"


def _kinds(sheets: list[Capability], name: str) -> str:
    if any(s.complete and name not in s.accepts for s in sheets):
        return "all"
    constraints = {str(s.accepts[name]) for s in sheets if name in s.accepts}
    return "; ".join(sorted(constraints)).replace(" or ", ", ") or "-"


def _features(sheets: list[Capability]) -> str:
    if any(s.complete for s in sheets):
        return "all"
    subsets = [s.accepts.get("features", Subset()) for s in sheets]
    named = {m for s in subsets if isinstance(s, Subset) for m in s.members}
    return ", ".join(sorted(named)) or "none"


def _devices(backend: Backend) -> str:
    sheets = list(backend.sheets())
    kinds = sorted({d for s in sheets for d in s.devices})
    bounds = {str(s.sm) for s in sheets if str(s.sm) != "anything"}
    return ", ".join(kinds) + (f", sm {', '.join(bounds)}" if bounds else "")


def _our_plugins() -> list[EntryPoint]:
    """The plugins of this repository, which `make setup` installs."""
    ours = {folder.name for folder in (README.parent / "plugins").iterdir()}
    return sorted(p for p in entry_points(group="attnhub") if p.name in ours)


def matrix() -> str:
    """Support of the backends in this repository, from their capability sheets."""
    rows = [("op", "backend", "devices", "K/V", "dtypes", "variants"), ("---",) * 6]
    with isolated() as registry:
        for plugin in _our_plugins():
            registry.load_entry_point(plugin)
        for backend in registry.backends("attention"):
            sheets = list(backend.sheets())
            cells = _kinds(sheets, "kv"), _kinds(sheets, "kv_dtype"), _features(sheets)
            rows.append(("attention", backend.name, _devices(backend), *cells))
        families: dict[tuple[str, str, str], list[str]] = {}
        for op in sorted(registry.ops.keys() - {"attention"}):
            for backend in registry.backends(op):
                kinds = _kinds(list(backend.sheets()), "dtype")
                served = families.setdefault((backend.name, _devices(backend), kinds), [])
                served.append(op.partition(".")[0])
        for (name, places, kinds), served in families.items():
            rows.append((", ".join(dict.fromkeys(served)), name, places, "-", kinds, "-"))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def explained() -> str:
    """Llama-3-70B decode on an H100, as any machine prints it."""
    with isolated():
        decision = attnhub.explain(
            "attention",
            device="h100",
            num_qo_heads=64,
            num_kv_heads=8,
            head_dim=128,
            dtype="bfloat16",
            kv=Paged(page_size=16),
            variant=Variant(causal=True),
            batch=64,
            qo_len=1,
            kv_len=4096,
        )
    command = (
        "$ attnhub explain attention --device h100 num_qo_heads=64 num_kv_heads=8 head_dim=128 \\\n"
        "    dtype=bfloat16 kv=paged:16 --variant causal batch=64 qo_len=1 kv_len=4096"
    )
    return f"```text\n{command}\n{decision}\n```"


def output() -> str:
    """What the first block of code prints."""
    block = re.search(r"^```python run\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    printed = io.StringIO()
    with isolated(), contextlib.redirect_stdout(printed):
        exec(compile(block[1], str(README), "exec"), {})
    return f"```text\n{printed.getvalue()}```"


def newest(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of the last run on each machine, machines without a GPU first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.gpu != "cpu", row.machine)):
        found.setdefault(row.machine, []).append(row)
    return {
        machine: [row for row in group if row.date == max(r.date for r in group)]
        for machine, group in found.items()
    }


def cost_table(rows: list[Row]) -> str:
    """A line for each budget, a column for each machine, and what was measured when."""
    runs = newest([row for row in rows if row.suite == suites.OVERHEAD])
    lines = [["figure", "at most", *runs], ["---"] * (2 + len(runs))]
    for budget in overhead.BUDGETS:
        cells = [f"{budget.limit:g} {budget.unit}"]
        for run in runs.values():
            values = [f"{row.value:.3g} {row.unit}" for row in run if row.case == budget.case]
            cells += values or ["-"]
        lines.append([budget.case, *cells])
    told = [
        (run[0].date[:10], run[0].short_commit, run[0].versions["torch"]) for run in runs.values()
    ]
    facts = [f"{day}, {commit}, torch {version}" for day, commit, version in told]
    lines.append(["measured", "", *facts])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def costs() -> str:
    """What AttnHub costs on the host, from the results in this repository."""
    return cost_table(results.read([RESULTS]))


PARTS = {"output": output, "matrix": matrix, "explain": explained, "overhead": costs}


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", PARTS)
def test_the_readme_says_what_the_code_says(name: str) -> None:
    found = _part(name).search(README.read_text())
    assert found is not None
    assert found[0] == f"<!-- {name} -->\n{PARTS[name]()}\n<!-- /{name} -->"


def _run(gpu: str, hour: int, **values: float) -> list[Row]:
    here = Environment(
        gpu=gpu,
        versions={"cpu": "EPYC" if gpu == "cpu" else "Xeon", "torch": f"2.{hour}.0"},
        commit=f"{hour:040}",
        date=f"2026-11-30T{hour:02}:00:00Z",
    )
    return [here.row("overhead", case, "host time", v, "us") for case, v in values.items()]


def test_costs_are_those_of_the_last_run_on_each_machine() -> None:
    rows = [
        *_run("cpu", 12, **{"Plan.run": 0.5, "cold selection of 12": 151.26}),
        *_run("cpu", 11, **{"Plan.run": 0.4, "import attnhub": 9.0}),
        *_run("NVIDIA H200", 10, **{"Plan.run": 0.251, "a case of old": 3.0}),
        Environment(gpu="cpu", versions={}, commit="c", date="2026-12-01T00:00:00Z").row(
            "norm.rmsnorm", "Plan.run", "time", 7.0, "us"
        ),
    ]
    lines = [line.strip("| ").split(" | ") for line in cost_table(rows).splitlines()]
    assert lines[0] == ["figure", "at most", "EPYC", "NVIDIA H200, Xeon"]
    assert ["Plan.run", "1 us", "0.5 us", "0.251 us"] in lines
    assert ["cold selection of 12", "200 us", "151 us", "-"] in lines
    assert ["import attnhub", "50 ms", "-", "-"] in lines  # measured before, by a run now old
    assert len(lines) == 2 + len(overhead.BUDGETS) + 1
    zeros = "0" * 10
    measured = [f"2026-11-30, {zeros}, torch 2.{hour}.0" for hour in (12, 10)]
    assert lines[-1] == ["measured", "", *measured]


if __name__ == "__main__":
    text = README.read_text()
    for part, make in PARTS.items():
        made = make()
        text = _part(part).sub(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    README.write_text(text)
