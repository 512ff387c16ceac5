"""Decisions and compiled graphs: no context manager, no probe and no Python object inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import attnhub
from attnhub import RaggedKV, Variant
from attnhub.core.registry import Registry
from tests.field_reports import stubs

X, WEIGHT = torch.full((2, 8), 3.0), torch.ones(8)


class Compiles:
    """A backend of torch.compile that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def test_overrides_set_outside_reach_into_a_compiled_function(isolated_registry: Registry) -> None:
    """The graph holds the op, not the decision: one compilation, whoever is asked for."""
    stubs.register_ones_and_twos(isolated_registry)
    compiles = Compiles()

    @torch.compile(fullgraph=True, backend=compiles)
    def layer(x: torch.Tensor) -> torch.Tensor:
        return attnhub.norm.rmsnorm(x * 2, WEIGHT) + 1

    assert layer(X).unique().tolist() == [2.0]
    with attnhub.use("twos"):
        assert layer(X).unique().tolist() == [3.0]
    with attnhub.use("ones", mode="deny"):
        assert layer(X).unique().tolist() == [3.0]
    with attnhub.use("reference"):
        torch.testing.assert_close(layer(X), torch.full((2, 8), 2.0))
    attnhub.configure(attnhub.Override(backend="twos"))
    assert layer(X).unique().tolist() == [3.0]
    assert len(compiles.graphs) == 1


def test_an_override_round_a_compiled_run_of_a_batch(isolated_registry: Registry) -> None:
    """A planned object took its decision at plan(); compiling its run() asks nobody again."""
    attn = attnhub.BatchAttention(4, 2, 8, torch.float32, device="cpu")
    indptr = torch.tensor([0, 3], dtype=torch.int32)
    with attnhub.use("reference"):
        attn.plan(indptr, RaggedKV(indptr))
    q, k = torch.randn(3, 4, 8), torch.randn(3, 2, 8)
    compiles = Compiles()
    layer = torch.compile(lambda q, k: attn.run(q + 1, (k, k)), fullgraph=True, backend=compiles)
    with attnhub.use("torch_sdpa"):
        result = layer(q, k)
    assert torch.equal(result, attn.run(q + 1, (k, k)))
    chosen = attn.explain().chosen
    assert chosen is not None
    assert (chosen.name, len(compiles.graphs)) == ("reference", 1)


def test_probes_are_not_asked_while_tracing(isolated_registry: Registry) -> None:
    """A look at the machine would break the graph, or freeze what it found on another machine."""
    stubs.register_ones_and_twos(isolated_registry, probe="tests.field_reports.stubs:probe")
    stubs.probed.clear()

    @torch.compile(fullgraph=True, backend="eager")
    def layer(x: torch.Tensor) -> torch.Tensor:
        return attnhub.norm.rmsnorm(x, WEIGHT)

    for _ in range(3):
        assert layer(X).unique().tolist() == [1.0]
    assert stubs.probed == [False]  # once for both backends, when the graph first ran


@pytest.mark.parametrize("family", ["attention", "norm"])
def test_a_graph_holds_ops_and_plain_values_only(family: str) -> None:
    """So it can be cached and outlive its process: no handle, no context, no callback in it."""
    variant = Variant(causal=True, score_mod=lambda s, b, h, q, k: s * 0.5)

    def attend(x: torch.Tensor) -> Any:
        return attnhub.attention(x, x, x, variant=variant)

    compiles = Compiles()
    function = attend if family == "attention" else lambda x: attnhub.norm.rmsnorm(x, WEIGHT)
    torch.compile(function, fullgraph=True, backend=compiles)(torch.randn(4, 2, 8))
    (graph,) = compiles.graphs
    ours = [n for n in graph.graph.nodes if str(n.target).startswith("attnhub.")]
    assert len(ours) == 1
    flat, _ = torch.utils._pytree.tree_flatten([*ours[0].args, ours[0].kwargs])
    assert {type(x) for x in flat} <= {torch.fx.Node, str, int, float, bool, type(None)}
    called = {n.target for n in graph.graph.nodes if n.op in ("call_function", "call_module")}
    assert not [t for t in called if "enter" in str(t) or "exit" in str(t)]
