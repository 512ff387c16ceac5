"""Every operation of the language in CUDA C++, on every pair of awkward operands."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from attnhub.variant import HOOKS, OPS, Expr, Graph, TensorParam, Variant
from attnhub.variant.expr import cast
from attnhub.variant.params import Kind
from attnhub.variant.symbol import Symbol
from attnhub.variant.torch_emitter import evaluate
from tests.variant.hooks import grid

INPUTS = HOOKS["score_mod"].inputs
LARGEST = 2**31 - 1

MODERATE = (-100, -3.5, -1, -0.3, -1e-3, -0.0, 0, 1e-3, 0.5, 1, 2, 3.25)

#: Operands by the pool that they come from.
POOLS = {
    "floats": torch.tensor([*MODERATE, 10, 87, 1e6, -torch.inf, torch.inf, torch.nan]),
    "finite": torch.tensor([-1e6, -3.999, -1, -0.5, -0.0, 0.999, 1, 2.5, 123456.7]),
    "ints": torch.tensor([-LARGEST, -7, -5, -2, -1, 0, 1, 2, 3, 6, LARGEST], dtype=torch.int32),
    "small": torch.tensor([-46340, -7, -1, 0, 1, 2, 46340], dtype=torch.int32),
    "divisors": torch.tensor([-LARGEST, -5, -2, -1, 1, 2, 3, 4, LARGEST], dtype=torch.int32),
    "bools": torch.tensor([False, True]),
}
#: Pools of arguments whose results are not all specified otherwise.
NARROWED = {
    **dict.fromkeys(itertools.product(("add", "sub", "mul"), [("int", "int")]), ("small", "small")),
    ("floordiv", ("int", "int")): ("ints", "divisors"),
    ("mod", ("int", "int")): ("ints", "divisors"),
    ("to_int", ("float",)): ("finite",),
}
#: (relative, absolute) error allowed, from ptx/math.cuh, common/math.cuh and CUDA's tables of its
#: functions; what is not here is exact. Sigmoid's grows with the operand, which is 100 at most.
ERRORS = {
    **dict.fromkeys(("div", "exp", "exp2", "sqrt", "rsqrt", "tanh", "erf"), (2**-21, 1e-37)),
    **dict.fromkeys(("log", "log1p", "log2"), (2**-22, 0.0)),
    **dict.fromkeys(("sin", "cos"), (0.0, 2**-20)),
    "sigmoid": (2**-21 + 100 * 2**-23, 1e-37),
    "pow": (2**-20, 1e-37),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation on arguments of these kinds."""

    op: str
    kinds: tuple[Kind, ...]

    def graph(self) -> Graph:
        """Its result as a float: the first operand goes by q_idx, the second by kv_idx."""
        defaults = tuple(f"{kind}s" for kind in self.kinds)
        names = NARROWED.get((self.op, self.kinds), defaults)
        q_idx, kv_idx = (Symbol(Expr("input", value=name)) for name in ("q_idx", "kv_idx"))
        places = [q_idx, kv_idx] if len(names) < 3 else [(q_idx + kv_idx) % 2, q_idx, kv_idx]
        args = tuple(
            TensorParam(name, 1, str(POOLS[name].dtype).removeprefix("torch."))[
                place % len(POOLS[name])
            ].expr
            for name, place in zip(names, places, strict=False)
        )
        return Graph(INPUTS, cast(Expr(self.op, args), "float"))


OPERATIONS = [
    Operation(op=name, kinds=kinds) for name, op in OPS.items() for kinds in op.signatures
]


def all_of(graphs: list[Graph]) -> Graph:
    """One graph for all: h says which of them it computes."""
    result = graphs[0].root
    for number, graph in enumerate(graphs[1:], start=1):
        is_chosen = Symbol(Expr("input", value="h")) == number
        result = Expr("where", (is_chosen.expr, graph.root, result))
    return Graph(INPUTS, result)


def check(name: str, actual: Tensor, expected: Tensor) -> None:
    """Compare with float64; what float32 cannot hold overflows or underflows."""
    rel, absolute = ERRORS.get(name, (0.0, 0.0))
    torch.testing.assert_close(
        actual,
        expected.float(),
        rtol=rel,
        atol=absolute,
        equal_nan=True,
        msg=lambda m: f"{name}: {m}",
    )


def test_every_operation(device: torch.device) -> None:
    graphs = [operation.graph() for operation in OPERATIONS]
    side = max(map(len, POOLS.values()))
    params = {name: pool.to(device) for name, pool in POOLS.items()}
    x = torch.zeros(1, len(graphs), side, side, device=device)
    actual = grid(Variant(score_mod=all_of(graphs)), x, params).scores[0].cpu()
    places = torch.arange(side)
    inputs = {"q_idx": places[:, None], "kv_idx": places}
    for number, (operation, graph) in enumerate(zip(OPERATIONS, graphs, strict=True)):
        expected = evaluate(
            graph, {"score": torch.zeros(side, side, dtype=torch.float64), **inputs}, POOLS
        )
        check(operation.op, actual[number], expected)
