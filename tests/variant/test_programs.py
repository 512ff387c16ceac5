"""Random straight-line programs: traced and evaluated, they equal the program run on tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnhub.variant import Graph, trace
from attnhub.variant.expr import OPS, Expr, apply
from attnhub.variant.symbol import Symbol, lift
from attnhub.variant.torch_emitter import evaluate
from tests.variant.cases import inputs

Step = tuple[int, int, int, int]

# (kinds of the arguments, kind of the result, function). Divisors are constants other than zero.
INSTRUCTIONS: list[tuple[str, str, Callable[..., Any]]] = [
    ("ff", "f", operator.add),
    ("fi", "f", operator.sub),
    ("if", "f", operator.mul),
    ("fb", "f", operator.mul),
    ("ff", "f", operator.truediv),
    ("ii", "f", operator.truediv),
    ("ii", "i", operator.add),
    ("ii", "i", operator.sub),
    ("ii", "i", operator.mul),
    ("ib", "i", operator.add),
    ("i", "i", lambda i: i // 3),
    ("i", "i", lambda i: i % -5),
    ("i", "i", lambda i: 7 - i),
    ("i", "i", lambda i: i**2),
    ("i", "f", lambda i: i * 0.1),
    ("f", "f", lambda f: 1.5 - f),
    ("f", "f", operator.neg),
    ("i", "i", abs),
    ("f", "f", torch.tanh),
    ("f", "f", torch.sigmoid),
    ("i", "f", torch.exp2),
    ("f", "f", lambda f: torch.clamp(f, -2.0, 2.0)),
    ("i", "i", lambda i: i.clamp(min=-1)),
    ("f", "f", torch.relu),
    ("ff", "f", torch.minimum),
    ("if", "f", torch.maximum),
    ("ii", "i", torch.maximum),
    ("ff", "b", operator.lt),
    ("fi", "b", operator.ge),
    ("ii", "b", operator.eq),
    ("ii", "b", operator.gt),
    ("i", "b", lambda i: i % 2 != 0),
    ("bb", "b", operator.and_),
    ("bb", "b", operator.xor),
    ("bb", "b", torch.logical_or),
    ("b", "b", operator.invert),
    ("i", "i", operator.invert),
    ("ii", "i", operator.or_),
    ("bff", "f", torch.where),
    ("bii", "i", torch.where),
    ("bfi", "f", torch.where),
    ("bf", "f", lambda b, f: torch.where(b, f, -float("inf"))),
]

programs = st.lists(
    st.tuples(st.integers(0, len(INSTRUCTIONS) - 1), *[st.integers(0, 31)] * 3),
    min_size=1,
    max_size=24,
)


def as_mod(program: list[Step]) -> Callable[..., Any]:
    """A score_mod that runs the program; each step reads among the values made so far."""

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        pools = {"f": [score], "i": [b, h, q_idx, kv_idx], "b": [q_idx >= kv_idx]}
        for number, *picks in program:
            kinds, result, function = INSTRUCTIONS[number]
            # The latest values are the likeliest, so that programs grow deep.
            args = [pools[k][-1 - p % len(pools[k])] for k, p in zip(kinds, picks, strict=False)]
            pools[result].append(function(*args))
        chosen = torch.where(pools["b"][-1], pools["f"][-1], pools["i"][-1])
        return chosen + pools["f"][len(pools["f"]) // 2]

    return mod


@settings(max_examples=300, deadline=None)
@given(programs)
def test_evaluation_equals_the_program_on_tensors(program: list[Step]) -> None:
    arguments = inputs("score_mod")
    expected = as_mod(program)(*arguments.values()).expand(arguments["score"].shape)
    graph = trace("score_mod", as_mod(program))
    actual = evaluate(graph, arguments)
    # The same float32 operations in the same order: not even the last bit may differ.
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert Graph.from_json(graph.to_json()) == graph


@settings(max_examples=200, deadline=None)
@given(programs)
def test_text_is_python_that_means_the_graph(program: list[Step]) -> None:
    graph = trace("score_mod", as_mod(program))
    names: dict[str, Any] = {name: Symbol(Expr("input", value=name)) for name in graph.inputs}
    for op in OPS:
        function = functools.partial(lambda op, *args: Symbol(apply(op, *map(lift, args))), op)
        names[op.removeprefix("to_")] = function
    names["inf"] = float("inf")
    *lines, result = str(graph).split("; ")
    for line in lines:
        exec(line, names)
    assert Graph(graph.inputs, eval(result, names).expr) == graph


def test_the_programs_reach_every_instruction() -> None:
    for number in range(len(INSTRUCTIONS)):
        mod = as_mod([(number, 0, 1, 2)])
        arguments = inputs("score_mod")
        expected = mod(*arguments.values()).expand(arguments["score"].shape)
        actual = evaluate(trace("score_mod", mod), arguments)
        assert torch.equal(actual, expected)
