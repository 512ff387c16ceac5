"""What ``docs/plan_contract.md`` says of plans is what the table says, and what the code does.

``python -m tests.core.test_plan_contract`` rewrites the table of the document.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.backends import manifest
from attnhub.backends.contracts import CONTRACTS
from attnhub.core import discovery
from attnhub.core.backend import resolve
from attnhub.mla.inputs import MLAScales
from attnhub.plugin import Contract, Problem

DOCUMENT = Path(__file__).parents[2] / "docs" / "plan_contract.md"
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"
_TYPES = {
    "Tensor": Tensor,
    "Out": Tensor,
    "InOut": Tensor,
    "Mapping": Mapping,
    "Literal": Literal,
    "Scales": attnhub.Scales,
    "MLAScales": MLAScales,
}

_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}
#: Facts for a plan of each contract; other ops take the first value of every field.
_FACTS: dict[str, list[dict[str, Any]]] = {
    "attention": [{**_HEADS, "kv": "dense"}, {**_HEADS, "kv": attnhub.Paged(16)}],
    "mla": [{"num_heads": 4, "dtype": "float32", "page_size": 16}],
}
_ALL = [(op, i) for op, contracts in CONTRACTS.items() for i in range(len(contracts))]


class _WithoutShapes(ast.NodeTransformer):
    """``Out[tokens, dim] | None`` -> ``Out | None``; other subscripts stay."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in ("Tensor", "Out", "InOut"):
            return node.value
        return node


def arguments(contract: Contract) -> dict[str, ast.expr]:
    """The arguments of ``run`` by name, with their types as written."""
    (function,) = ast.parse(f"def run({contract.run}): ...").body
    assert isinstance(function, ast.FunctionDef)
    return {a.arg: a.annotation for a in function.args.args if a.annotation is not None}


def _type(annotation: ast.expr) -> Any:
    plain = ast.unparse(_WithoutShapes().visit(annotation))
    return eval(plain, dict(_TYPES))


def _problem(op: str, index: int) -> Problem:
    cls = discovery.default().problem_class(op)
    if op in _FACTS:
        return cls.of("cpu", **_FACTS[op][index])
    fields = {n: f for n, f in cls.__dataclass_fields__.items() if "domain" in f.metadata}
    return cls.of("cpu", **{n: f.metadata["domain"][0] for n, f in fields.items()})


def _plan(op: str, index: int) -> Any:
    registry = discovery.default()
    (backend,) = [b for b in registry.backends(op) if b.name == "reference"]
    return resolve(backend.load).plan(_problem(op, index))


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """Types of the positional parameters by name, and of those that ``*`` gathers, or None."""
    hints = typing.get_type_hints(function)
    named, rest = {}, None
    for name, p in inspect.signature(function).parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            rest = hints[name]
        else:
            named[name] = hints[name]
    return named, rest


@pytest.mark.parametrize(("op", "index"), _ALL)
def test_the_reference_runs_by_its_contract(op: str, index: int) -> None:
    expected = {n: _type(a) for n, a in arguments(CONTRACTS[op][index]).items()}
    named, rest = _parameters(_plan(op, index).run)
    if rest is not None:
        gathered = dict(list(expected.items())[len(named) :])
        assert set(gathered.values()) == {rest}
        expected = {n: t for n, t in expected.items() if n not in gathered}
    assert list(named) == list(expected)
    assert named == expected


@pytest.mark.parametrize(("op", "index"), _ALL)
def test_plans_have_the_methods_and_the_first_contract_that_concerns_counts(
    op: str, index: int
) -> None:
    contract, problem = CONTRACTS[op][index], _problem(op, index)
    methods = discovery.default().plan_methods(problem)
    assert methods == contract.methods == (("run", "update") if contract.update else ("run",))
    plan = _plan(op, index)
    assert all(callable(getattr(plan, name)) for name in methods)


@pytest.mark.parametrize(("op", "index"), _ALL)
def test_what_is_written_is_what_the_torch_op_says_it_mutates(op: str, index: int) -> None:
    for family in {op.partition(".")[0]} - {"attention"}:
        getattr(attnhub, family)
    name = {"mla": "mla_run", "attention": ("attention", "attention_run")[index]}.get(op, op)
    schema = getattr(torch.ops.attnhub, name.replace(".", "_")).default._schema
    mutated = {a.name for a in schema.arguments if a.alias_info is not None}
    written = {n for n, a in arguments(CONTRACTS[op][index]).items() if "Out[" in ast.unparse(a)}
    assert mutated == written


def test_every_op_has_a_contract() -> None:
    assert {op.name: op.contracts for op in manifest.attnhub_ops()} == CONTRACTS


def table() -> str:
    """One row a contract."""
    lines = ["| op | `run` | `update` |", "| --- | --- | --- |"]
    for op, contracts in CONTRACTS.items():
        for contract in contracts:
            when = ", ".join(f"{n} {c}" for n, c in contract.when.items())
            others = ", otherwise" if len(contracts) > 1 and not when else ""
            run = "<br>".join(
                f"`{name}: {ast.unparse(a)}`" for name, a in arguments(contract).items()
            ).replace("|", "\\|")
            note = f"<br>{contract.note}" if contract.note else ""
            update = f"`batch: {contract.update}`" if contract.update else "none"
            name = f"`{op}`{f', {when}' if when else others}"
            lines.append(f"| {name} | {run}{note} | {update} |")
    return "\n".join(lines)


def document() -> str:
    """The document as it should be."""
    head, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    return f"{head}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


def test_the_document_holds_the_table() -> None:
    assert DOCUMENT.read_text() == document(), "python -m tests.core.test_plan_contract"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
