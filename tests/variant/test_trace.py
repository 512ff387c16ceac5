"""What can be traced, what is refused and how it is said, and when two traces are equal."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnhub.errors import InvalidArgument, TraceError
from attnhub.variant import Graph, ScalarParam, TensorParam, and_masks, or_masks, trace
from attnhub.variant.expr import OPS, Expr, apply, const
from tests.variant.cases import CASES, Case

BIAS = TensorParam("bias", 2)
ALPHA = ScalarParam("alpha")


def score(expression: Callable[..., Any]) -> Graph:
    """Trace an expression of (score, h, q_idx, kv_idx)."""
    return trace("score_mod", lambda s, b, h, q, k: expression(s, h, q, k))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_functions_make_equal_graphs_and_json_keeps_them(case: Case) -> None:
    graph, again = trace(case.hook, case.symbolic()), trace(case.hook, case.symbolic())
    assert graph == again
    assert hash(graph) == hash(again)
    for copy in (Graph.from_json(graph.to_json()), pickle.loads(pickle.dumps(graph))):
        assert copy == graph
        assert copy.digest == graph.digest
        assert copy.params == graph.params
        assert copy.nodes == graph.nodes
    assert {spec.name for spec in graph.params} == set(case.params)


def test_all_cases_differ() -> None:
    graphs = [trace(case.hook, case.symbolic()) for case in CASES]
    assert len(set(graphs)) == len({graph.digest for graph in graphs}) == len(CASES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda s, h, q, k: s + q, lambda s, h, q, k: q + s, id="order"),
        pytest.param(lambda s, h, q, k: s * 1.0, lambda s, h, q, k: s * 2.0, id="constant"),
        pytest.param(lambda s, h, q, k: s * 0.0, lambda s, h, q, k: s * -0.0, id="signed-zero"),
        pytest.param(lambda s, h, q, k: s * ALPHA, lambda s, h, q, k: s * k, id="parameter"),
        pytest.param(
            lambda s, h, q, k: TensorParam("t", 1)[h],
            lambda s, h, q, k: TensorParam("t", 1, "float16")[h],
            id="dtype-of-parameter",
        ),
    ],
)
def test_different_structure_is_not_equal(one: Any, other: Any) -> None:
    assert score(one) != score(other)
    assert score(one).digest != score(other).digest


def test_names_of_arguments_and_local_variables_do_not_matter() -> None:
    def long(first, second, third, fourth, fifth):
        distance = fourth - fifth
        return first + distance * 2

    assert trace("score_mod", long) == score(lambda s, h, q, k: s + (q - k) * 2)
    keyword = functools.partial(lambda s, b, h, q, k, *, factor: s + (q - k) * factor, factor=2)
    assert trace("score_mod", keyword) == trace("score_mod", long)


# Reason: (score_mod of (score, h, q_idx, kv_idx), text).
TEXTS: dict[str, tuple[Callable[..., Any], str]] = {
    "power": (lambda s, h, q, k: -((s + 1) ** 2.0), "-(score + 1.0) ** 2.0"),
    "power-left": (lambda s, h, q, k: (s**2.0) ** 0.5, "(score ** 2.0) ** 0.5"),
    "mask": (
        lambda s, h, q, k: torch.where((q >= k) & ~(h == 1), s, -math.inf),
        "where((q_idx >= kv_idx) & ~(h == 1), score, -inf)",
    ),
    "shared": (lambda s, h, q, k: (q - k) ** 2, "t0 = q_idx - kv_idx; t0 * t0"),
    "conversion": (lambda s, h, q, k: (s / 2).int() % 3, "int(score / 2.0) % 3"),
    "scalar": (lambda s, h, q, k: ALPHA, "alpha"),
    "constant": (lambda s, h, q, k: 0.5, "0.5"),
}


@pytest.mark.parametrize("reason", TEXTS)
def test_text(reason: str) -> None:
    expression, text = TEXTS[reason]
    assert str(score(expression)) == text


def test_masks_combine_as_their_operators_do() -> None:
    def near(b, h, q, k):
        return q - k <= 4

    def first(b, h, q, k):
        return k < 2

    def both(b, h, q, k):
        return near(b, h, q, k) & first(b, h, q, k)

    def either(b, h, q, k):
        return near(b, h, q, k) | first(b, h, q, k)

    assert trace("mask_mod", and_masks(near, first)) == trace("mask_mod", both)
    assert trace("mask_mod", or_masks(near, first)) == trace("mask_mod", either)
    assert trace("mask_mod", and_masks(near)) == trace("mask_mod", near)
    assert str(trace("mask_mod", and_masks())) == "True"
    assert str(trace("mask_mod", or_masks())) == "False"
    q, k = torch.arange(8)[:, None], torch.arange(8)
    assert torch.equal(and_masks(near, first)(0, 0, q, k), (q - k <= 4) & (k < 2))


def test_methods_and_functions_mean_the_same() -> None:
    assert score(lambda s, h, q, k: s.tanh() + q.abs().clamp(max=3)) == score(
        lambda s, h, q, k: torch.tanh(s) + torch.clamp(abs(q), max=3)
    )
    assert score(lambda s, h, q, k: F.sigmoid(s) * np.float64(2)) == score(
        lambda s, h, q, k: torch.sigmoid(s) * 2.0
    )
    assert score(lambda s, h, q, k: np.float64(2) * s) == score(lambda s, h, q, k: 2.0 * s)


def test_sharing_costs_nothing() -> None:
    """A doubling chain has 2**64 paths; hash, equality, text and JSON must not walk them."""

    def doubling(s, b, h, q, k):
        for _ in range(64):
            s = s + s
        return s

    graph = trace("score_mod", doubling)
    assert len(graph.nodes) == 65
    assert Graph.from_json(graph.to_json()) == graph
    assert str(graph).startswith("t0 = score + score; t1 = t0 + t0;")


def test_depth_is_not_limited_by_recursion() -> None:
    def long(s, b, h, q, k):
        for step in range(3000):
            s = s + step
        return s

    graph = trace("score_mod", long)
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert len(str(graph)) > 3000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="not-json"),
        pytest.param("[]", id="list"),
        pytest.param('{"format":2,"inputs":["b"],"nodes":[["input","b",[]]]}', id="newer-format"),
        pytest.param('{"format":1,"inputs":["b"],"nodes":[]}', id="empty"),
        pytest.param('{"format":1,"inputs":["b"],"nodes":[["input","d",[]]]}', id="undeclared"),
        pytest.param('{"format":1,"inputs":["b"],"nodes":[["sinh","b",[]]]}', id="unknown-op"),
        pytest.param('{"format":1,"inputs":["b"],"nodes":[["neg",null,[0]]]}', id="cycle"),
        pytest.param(
            '{"format":1,"inputs":["b"],"nodes":[["input","b",[]],["exp",null,[0]]]}', id="kind"
        ),
    ],
)
def test_wrong_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="give what to_json returned"):
        Graph.from_json(text)


def test_hooks_check_graphs_and_names() -> None:
    graph = trace("mask_mod", lambda b, h, q, k: q >= k)
    assert trace("mask_mod", graph) is graph
    with pytest.raises(InvalidArgument, match=r"score_mod was given a graph of \(b, h,"):
        trace("score_mod", graph)
    with pytest.raises(InvalidArgument, match="'mod' does not exist; use one of score_mod"):
        trace("mod", graph)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.signatures], ids=lambda op: op.name)
def test_the_table_is_what_nodes_accept(op: Any) -> None:
    """Every row builds a node of its kind, and float, int, bool in any other mixture do not."""
    leaves = {"float": const(1.5), "int": const(2), "bool": const(True)}
    for kinds, result in op.signatures.items():
        assert len(kinds) == op.arity
        assert Expr(op.name, tuple(leaves[kind] for kind in kinds)).kind == result
    with pytest.raises(InvalidArgument, match="it computes: "):
        Expr(op.name, tuple(leaves.values())[: op.arity - 1])
    with pytest.raises(TraceError, match="does not take"):
        apply(op.name, *[const(1)] * (op.arity + 1))
