"""What sheets say: changes that do fit, nothing beside the point, no word that means nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from attnhub.attn.problem import AttentionProblem
from attnhub.plugin import (
    AnyValue,
    Capability,
    Constraint,
    MultipleOf,
    OneOf,
    Problem,
    Range,
    Rule,
    SameAs,
    Subset,
    fact,
)

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Problem):
    """A field of each kind that hints are made for."""

    op = "fake.case"

    kind: str = fact(domain=("dense", "paged"), structural=True)
    q: str = fact(domain=(*DTYPES, "float8_e4m3fn"))
    kv: str = fact(domain=(*DTYPES, "float8_e4m3fn"))
    dim: int = fact(domain=(40, 64, 96), default=64)
    page: int | None = fact(domain=(1, 16), default=None)
    contiguous: bool = fact(domain=(True, False), default=True)
    graph: bool = fact(domain=(False, True), default=False)
    layout: str = fact(domain=("NHD", "HND"), default="NHD")
    mask: str = fact(domain=("none", "bool"), default="none")
    features: frozenset[str] = fact(
        domain=(frozenset({"cap"}), frozenset({"rope"})), default=frozenset()
    )


SAME = Rule(when={"q": AnyValue()}, then={"kv": SameAs("q")}, why="one dtype")


def sheet(*rules: Rule, **accepts: Constraint) -> Capability:
    every = {"kind": AnyValue(), "q": OneOf(*DTYPES), "kv": OneOf(*DTYPES), **accepts}
    return Capability(accepts=every, rules=rules)


def case(**facts: Any) -> Case:
    return Case.of("cpu", **{"kind": "dense", "q": "bfloat16", "kv": "bfloat16", **facts})


def hints(capability: Capability, problem: Problem) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for reason in capability.reasons(problem):
        found.setdefault(reason.field, []).append(reason.hint)
    return found


@pytest.mark.parametrize(
    ("capability", "facts", "expected"),
    [
        pytest.param(
            sheet(SAME), {"kv": "float8_e4m3fn"}, {"kv": ["bfloat16"] * 2}, id="one of both needs"
        ),
        pytest.param(
            sheet(SAME),
            {"q": "float8_e4m3fn", "kv": "float32"},
            {"q": ["float16"], "kv": ["float16"]},
            id="the same as what will be changed",
        ),
        pytest.param(
            sheet(
                Rule(when={"kind": OneOf("dense")}, then={"dim": MultipleOf(16)}, why="tiles"),
                dim=Range(90, 256),
            ),
            {"dim": 40},
            {"dim": ["96"] * 2},
            id="the next one that is in both",
        ),
        pytest.param(
            sheet(
                Rule(when={"kind": OneOf("dense")}, then={"dim": OneOf(128)}, why="x"),
                dim=OneOf(64, 96),
            ),
            {"dim": 40},
            {"dim": ["", ""]},
            id="no value is in both",
        ),
        pytest.param(
            sheet(
                Rule(when={"kv": OneOf("float16")}, then={"dim": OneOf(96)}, why="x"),
                dim=AnyValue(),
            ),
            {"kv": "float8_e4m3fn"},
            {"kv": [""]},
            id="the change would break a rule",
        ),
    ],
)
def test_hints_together_lead_to_a_problem_that_fits(
    capability: Capability, facts: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    problem = case(**facts)
    found = hints(capability, problem)
    assert found == {
        name: [value and f"fits if {name} is {value}" for value in values]
        for name, values in expected.items()
    }
    changes = {n: int(v[0]) if n == "dim" else v[0] for n, v in expected.items() if v[0]}
    fits = not capability.reasons(dataclasses.replace(problem, **changes))
    assert fits is bool(changes)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            {"contiguous": False},
            "contiguous is False, needs True (not supported here) (fits if contiguous is True)",
        ),
        ({"graph": True}, "graph is True, needs none (not supported here) (fits without graph)"),
        (
            {"layout": "HND"},
            "layout is HND, needs NHD (not supported here) (fits if layout is NHD)",
        ),
        ({"mask": "bool"}, "mask is bool, needs none (not supported here) (fits without mask)"),
        ({"dim": 96}, "dim is 96, needs 64 (not supported here) (fits if dim is 64)"),
    ],
)
def test_a_field_not_mentioned_is_hinted_at_by_its_default(
    facts: dict[str, Any], text: str
) -> None:
    assert [str(r) for r in sheet().reasons(case(**facts))] == [text]


def test_every_reason_is_given_also_of_what_only_another_kind_has() -> None:
    dense = sheet(kind=OneOf("dense"))
    paged = case(kind="paged", page=16, graph=True)
    assert hints(dense, paged) == {
        "kind": ["fits if kind is dense"],
        "page": ["fits without page"],
        "graph": ["fits without graph"],
    }
    any_kind = hints(sheet(), paged)
    assert any_kind == {"page": ["fits without page"], "graph": ["fits without graph"]}


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        (sheet(q=OneOf("fp16")), "q has no value 'fp16'; did you mean 'float16'"),
        (sheet(q=OneOf("float16", "bf16")), "q has no value 'bf16'; did you mean 'bfloat16'"),
        (sheet(layout=OneOf("NDH")), "layout has no value 'NDH'; did you mean 'NHD'"),
        (sheet(mask=OneOf("none", "xyz")), "mask has no value 'xyz'"),
        (sheet(features=Subset("ropes")), "features has no value 'ropes'; did you mean 'rope'"),
        (
            sheet(Rule(when={"q": OneOf("half")}, then={"dim": OneOf(64)}, why="x")),
            "q has no value 'half'; did you mean 'float16'",
        ),
    ],
)
def test_a_text_that_the_field_never_has_is_a_fault(capability: Capability, text: str) -> None:
    assert capability.faults(Case) == [text]


def test_values_of_the_domain_and_defaults_outside_it_are_no_faults() -> None:
    mask = dataclasses.replace(sheet(mask=OneOf("none", "bool"), dim=OneOf(7)), complete=True)
    assert mask.faults(Case) == []
    fine = Capability(
        accepts={"features": Subset("causal"), "q_dtype": OneOf(*DTYPES)}, complete=True
    )
    assert fine.faults(AttentionProblem) == []
