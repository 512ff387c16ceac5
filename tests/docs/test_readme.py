"""The parts of README.md that are made from the code.

``python -m tests.docs.test_readme`` rewrites them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attnhub
from attnhub import Paged, Variant
from attnhub.core.capability import Capability, Subset
from attnhub.plugin import Backend, isolated

README = Path(__file__).parents[2] / "README.md"


def _kinds(sheets: list[Capability], name: str) -> str:
    if any(s.complete and name not in s.accepts for s in sheets):
        return "all"
    constraints = {str(s.accepts[name]) for s in sheets if name in s.accepts}
    return "; ".join(sorted(constraints)).replace(" or ", ", ") or "none"


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


def matrix() -> str:
    """Support of the built-in backends, from their capability sheets."""
    lines = [
        "| op | backend | devices | K/V | K/V dtypes | variants |",
        "|---|---|---|---|---|---|",
    ]
    with isolated() as registry:
        for backend in registry.backends("attention"):
            sheets = list(backend.sheets())
            cells = [_kinds(sheets, "kv"), _kinds(sheets, "kv_dtype"), _features(sheets)]
            row = ["attention", backend.name, _devices(backend), *cells]
            lines.append("| " + " | ".join(row) + " |")
        others = sorted({op.partition(".")[0] for op in registry.ops} - {"attention"})
        names = ", ".join(others)
        lines.append(f"| {names} | reference | cpu, cuda | - | all | - |")
    return "\n".join(lines)


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


PARTS = {"matrix": matrix, "explain": explained}


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", PARTS)
def test_the_readme_says_what_the_code_says(name: str) -> None:
    found = _part(name).search(README.read_text())
    assert found is not None
    assert found[0] == f"<!-- {name} -->\n{PARTS[name]()}\n<!-- /{name} -->"


if __name__ == "__main__":
    text = README.read_text()
    for part, make in PARTS.items():
        made = make()
        text = _part(part).sub(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    README.write_text(text)
