"""Corners and neighbours of capability sheets over a small problem class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from attnhub.errors import InvalidArgument
from attnhub.plugin import (
    AnyValue,
    Backend,
    Calls,
    Capability,
    Device,
    Efficiency,
    MultipleOf,
    OneOf,
    Problem,
    Range,
    Rule,
    Subset,
    describe,
    fact,
)
from attnhub.testing.cases import CallsAdapter
from attnhub.testing.corners import Corner, Grid, field_of, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy(Problem):
    op = "toy"

    kind: str = fact(domain=("flat", "paged"))
    size: int = fact(domain=(8, 12, 64))
    page: int | None = fact(domain=(1, 16), default=None)
    extras: frozenset[str] = fact(domain=(frozenset({"a"}), frozenset({"b"})), default=frozenset())

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        if facts["size"] == 12 and facts["kind"] == "paged":
            raise InvalidArgument("pages do not hold 12")
        return facts


def clashes(facts: Mapping[str, Any], device: Device) -> set[str]:
    return {"kind", "page"} if (facts["kind"] == "paged") != (facts["page"] is not None) else set()


def grid(*sheets: Capability, device: str = "cpu", base: dict[str, Any] | None = None) -> Grid:
    backend = Backend(
        name="toy",
        op="toy",
        capability=sheets,
        cost=Efficiency(compute=1, memory=1),
        load="nowhere:nothing",
    )
    shape = CallsAdapter(Calls(build=lambda *_: (), base=base or {}, clashes=clashes))
    return Grid(backend=backend, cls=Toy, shape=shape, device=describe(device))


def sheet(**accepts: Any) -> Capability:
    return Capability(accepts={"kind": AnyValue(), "size": AnyValue(), **accepts})


def facts(corner: Corner) -> dict[str, Any]:
    assert corner.problem is not None, corner.why
    return corner.problem.facts()


def served(g: Grid) -> dict[str, dict[str, Any]]:
    return {str(corner): facts(corner) for corner in g.declared()}


def test_base_takes_defaults_first_values_and_preferences() -> None:
    plain = {"kind": "flat", "size": 8, "page": None, "extras": frozenset()}
    assert facts(grid(Capability(complete=True)).base) == plain
    preferred = grid(Capability(complete=True), base={"size": 64})
    assert facts(preferred.base) == {**plain, "size": 64}


def test_base_moves_to_what_a_sheet_accepts() -> None:
    base = facts(grid(sheet(kind=OneOf("paged"), size=OneOf(64), page=MultipleOf(16))).base)
    assert base == {"kind": "paged", "size": 64, "page": 16, "extras": frozenset()}


def test_a_complete_sheet_serves_every_value_once() -> None:
    corners = served(grid(Capability(complete=True)))
    # A page of 1 is what kind=paged brings along, so it is no corner of its own.
    assert list(corners) == ["base", "kind=paged", "size=12", "size=64", "page=16", "extras=a",
                             "extras=b"]  # fmt: skip
    assert corners["kind=paged"]["page"] == 1
    assert corners["page=16"]["kind"] == "paged"
    assert corners["extras=b"]["kind"] == "flat"


def test_sheets_name_values_beyond_the_domain() -> None:
    found = served(grid(sheet(kind=OneOf("paged"), size=OneOf(8, 80), page=MultipleOf(32))))
    others = {"kind": "paged", "page": 32, "extras": frozenset()}
    assert found == {"base": {"size": 8, **others}, "size=80": {"size": 80, **others}}


@pytest.mark.parametrize(
    ("size", "named"),
    [
        (Range(4, 200), [4, 200]),
        (Range(None, 10**6), []),  # no size to test with
        (MultipleOf(24), [24]),
        (AnyValue(), []),
    ],
    ids=str,
)
def test_ends_of_ranges_are_corners(size: Any, named: list[int]) -> None:
    beyond = [v for v in grid(sheet(size=size)).values["size"] if v not in (8, 12, 64)]
    assert beyond == named


def test_undeclared_values_are_refused_in_calls_that_exist() -> None:
    g = grid(sheet(kind=OneOf("flat"), size=OneOf(8, 64)))
    refused = {str(c): facts(c) for c in g.refused()}
    assert list(refused) == ["kind=paged", "size=12", "page=1", "page=16", "extras=a", "extras=b"]
    assert refused["kind=paged"]["page"] == 1
    assert refused["page=16"]["kind"] == "paged"
    assert refused["size=12"] == {"kind": "flat", "size": 12, "page": None, "extras": frozenset()}


def test_a_value_that_one_of_two_sheets_accepts_is_declared() -> None:
    flat = sheet(kind=OneOf("flat"), size=OneOf(8))
    paged = sheet(kind=OneOf("paged"), size=OneOf(64), page=AnyValue())
    g = grid(flat, paged)
    assert {name: f["size"] for name, f in served(g).items()} == {
        "base": 8,
        "kind=paged": 64,  # and so no corner of its own
        "page=16": 64,
    }
    assert [str(c) for c in g.refused()] == ["size=12", "extras=a", "extras=b"]


def test_rules_move_companions() -> None:
    needs = Rule(when={"extras": Subset("a")}, then={"size": OneOf(8)}, why="a test")
    strict = Rule(when={"size": OneOf(64)}, then={"extras": OneOf(frozenset({"b"}))}, why="a test")
    g = grid(
        Capability(
            accepts={"kind": OneOf("flat"), "size": AnyValue(), "extras": AnyValue()},
            rules=(needs, strict),
        )
    )
    assert served(g)["size=64"]["extras"] == {"b"}


def test_out_of_reach_says_why() -> None:
    never = Rule(when={"size": OneOf(64)}, then={"kind": OneOf("paged")}, why="only pages")
    g = grid(Capability(accepts={"kind": OneOf("flat"), "size": AnyValue()}, rules=(never,)))
    (corner,) = [c for c in g.declared() if c.problem is None]
    assert str(corner) == "size=64"
    assert corner.why == "kind is flat, needs paged: only pages"  # no change would fit


def test_no_call_fits() -> None:
    (corner,) = grid(sheet(size=OneOf(12), kind=OneOf("paged"), page=AnyValue())).declared()
    assert corner.problem is None
    assert corner.pinned == {}


def test_other_devices_sheets_are_left_out() -> None:
    cpu = Capability(complete=True, devices=("cpu",))
    hopper = Capability(
        accepts={"kind": OneOf("flat"), "size": OneOf(64)}, devices=("cuda",), sm=Range(90, None)
    )
    assert grid(cpu, hopper, device="h100").sheets == [hopper]
    assert grid(cpu, hopper, device="a100").sheets == []
    assert facts(grid(cpu, hopper, device="h100").base)["size"] == 64


def test_pairs_are_seeded_bounded_and_unite_features() -> None:
    g = grid(Capability(complete=True))
    every = {str(c): facts(c) for c in g.pairs(100, seed=0)}
    assert every["extras=a+b"]["extras"] == {"a", "b"}
    assert "kind=paged,size=12" not in every  # the problem class refuses it
    assert every["page=16,extras=a"]["kind"] == "paged"
    some = [str(c) for c in g.pairs(3, seed=0)]
    assert len(some) == 3
    assert some == [str(c) for c in g.pairs(3, seed=0)]
    assert some != [str(c) for c in g.pairs(3, seed=1)]
    singles = set(served(g))
    assert not singles & set(every)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(frozenset({"b", "a"}), "a+b"), (frozenset(), "none"), ((16, 4), "16x4"), (None, "None")],
    ids=["features", "no features", "block", "no value"],
)
def test_text(value: Any, shown: str) -> None:
    assert text(value) == shown


def test_field_of_finds_the_set_that_holds_a_feature() -> None:
    known = {"size": 8, "extras": frozenset({"a"})}
    assert [field_of(n, known) for n in ("size", "a", "sm")] == ["size", "extras", "sm"]


def test_device_is_a_value() -> None:
    assert isinstance(grid(Capability(complete=True)).device, Device)
