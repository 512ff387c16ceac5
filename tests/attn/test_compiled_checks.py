"""Compiled calls refuse what eager ones refuse, and take the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import attnhub
from attnhub import BatchAttention, BatchMLA, RaggedKV, ScalarParam, Scales, Variant
from attnhub.mla import MLAScales
from attnhub.variant import TensorParam

GAIN, TABLE = ScalarParam("gain"), TensorParam("table", 1)
STEP = ScalarParam("step", "int32")
SCALED = Variant(score_mod=lambda s, b, h, q, k: s * GAIN + TABLE[h])
COUNTED = Variant(score_mod=lambda s, b, h, q, k: s * STEP)
VALUES = {"gain": 2.0, "table": torch.arange(4.0)}


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = normal(3, 4, 8, seed=0), normal(5, 2, 8, seed=1), normal(5, 2, 8, seed=2)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def planned(variant: Variant, **plan: Any) -> BatchAttention:
    indptr = [torch.tensor([0, n], dtype=torch.int32) for n in (3, 5)]
    attn = BatchAttention(4, 2, 8, torch.float32, variant=variant, device="cpu")
    attn.plan(indptr[0], RaggedKV(indptr[1]), **plan)
    return attn


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    ("at_plan", "at_run"),
    [
        pytest.param({}, VALUES, id="all at run"),
        pytest.param(VALUES, {}, id="all at plan"),
        pytest.param({"gain": 2.0}, {"table": VALUES["table"]}, id="some at each"),
        pytest.param({**VALUES, "gain": 9.0}, {"gain": 2.0}, id="run overrides plan"),
        pytest.param({}, {**VALUES, "gain": torch.tensor(2.0)}, id="a 0-d tensor"),
    ],
)
def test_parameters_of_plan_and_run_meet(at_plan: dict[str, Any], at_run: dict[str, Any]) -> None:
    attn = planned(SCALED, params=at_plan)
    want = attnhub.attention(Q, K, V, variant=SCALED, params=VALUES)
    layer = compiled(lambda q: attn.run(q * 1.0, (K, V), params=at_run))
    torch.testing.assert_close(attn.run(Q, (K, V), params=at_run), want)
    torch.testing.assert_close(layer(Q), want)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        pytest.param({"params": {**VALUES, "typo": 1}}, "takes exactly", id="unknown parameter"),
        pytest.param({"params": {"gain": 2.0}}, "takes exactly", id="missing parameter"),
        pytest.param({"params": {**VALUES, "table": 3.0}}, "needs a float32 tensor", id="number"),
        pytest.param({"params": {**VALUES, "gain": "2"}}, "needs a number", id="text"),
        pytest.param({"params": VALUES, "scales": Scales(k="1")}, "is a str", id="scale is text"),
        pytest.param({"params": VALUES, "scales": None}, "scales is a NoneType", id="no scales"),
        pytest.param(
            {"params": VALUES, "scales": Scales(k=torch.ones(3))}, "needs one element", id="scale"
        ),
    ],
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_run_options_are_refused(how: str, run: dict[str, Any], message: str) -> None:
    attn = planned(SCALED)

    def layer(q: torch.Tensor) -> Any:
        return attn.run(q, (K, V), **run)

    # A compiler wraps what is raised while it traces; the sentence is in its message.
    with pytest.raises(Exception, match=message):
        (compiled(layer) if how == "compiled" else layer)(Q)


@pytest.mark.parametrize("op", ["attention", "mla"])
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_gradient_is_refused_not_lost(how: str, op: str) -> None:
    if op == "attention":
        attn = planned(Variant())
        layer: Callable[..., Any] = lambda q: attn.run(q * 2, (K, V)).sum()  # noqa: E731
        q = Q.clone().requires_grad_()
    else:
        mla, cache = latent(), latent_cache()
        layer = lambda q: mla.run(q * 2, Q[:, :, :4], cache).sum()  # noqa: E731
        q = Q.clone().requires_grad_()
    with pytest.raises(Exception, match="forward only"):
        (compiled(layer) if how == "compiled" else layer)(q)


def latent() -> BatchMLA:
    mla = BatchMLA(4, "float32", head_dim=(8, 4), page_size=5, scale=0.3, device="cpu")
    i32 = {"dtype": torch.int32}
    pages = (torch.tensor([0, 1], **i32), torch.tensor([0], **i32), torch.tensor([5], **i32))
    mla.plan(torch.tensor([0, 3], **i32), attnhub.PagedKV(*pages))
    return mla


def latent_cache() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(1, 5, 8, seed=3), normal(1, 5, 4, seed=4)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        pytest.param(MLAScales(ckv="1"), "scales.ckv is a str", id="text"),
        pytest.param(MLAScales(kpe=torch.ones(2)), "needs one element", id="shape"),
        pytest.param((1.0, 1.0), "needs MLAScales", id="a tuple"),
    ],
)
def test_scales_of_latent_attention_are_refused(scales: Any, message: str) -> None:
    mla, cache = latent(), latent_cache()
    layer = compiled(lambda q: mla.run(q, Q[:, :, :4], cache, scales=scales))
    with pytest.raises(Exception, match=message):
        layer(Q)


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "batch"])
def test_whole_numbers_stay_whole(how: str, dense: bool) -> None:
    """3 must not come as 3.0, and 1.5 is refused, not cut off."""
    attn = planned(COUNTED)

    def layer(q: torch.Tensor, step: Any) -> Any:
        if dense:
            return attnhub.attention(q, K, V, variant=COUNTED, params={"step": step})
        return attn.run(q, (K, V), params={"step": step})

    call = compiled(layer) if how == "compiled" else layer
    want = attnhub.attention(3 * Q, K, V)
    torch.testing.assert_close(call(Q, 3), want)
    torch.testing.assert_close(call(Q, torch.tensor(3, dtype=torch.int32)), want)
    with pytest.raises(Exception, match="is a float, needs an integer"):
        call(Q, 1.5)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "batch"])
def test_a_0d_tensor_may_change_without_compiling_anew(dense: bool) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    attn = planned(SCALED)

    def layer(q: torch.Tensor, gain: torch.Tensor) -> Any:
        values = {"gain": gain, "table": VALUES["table"]}
        if dense:
            return attnhub.attention(q, K, V, variant=SCALED, params=values)
        return attn.run(q, (K, V), params=values)

    call = torch.compile(layer, fullgraph=True, backend=backend)
    for step in range(20):
        gain = torch.tensor(0.1 * step)
        torch.testing.assert_close(call(Q, gain), layer(Q, gain))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["scales", "params", "out"])
def test_a_gradient_beside_the_tensors_is_refused_while_compiling(name: str) -> None:
    given: dict[str, Any] = {
        "scales": Scales(q=torch.ones(1, requires_grad=True)),
        "params": {"sinks": torch.ones(4, requires_grad=True)},
        "out": torch.zeros_like(Q).requires_grad_(),
    }
    attn = planned(Variant(sinks=name == "params"))

    def layer(q: torch.Tensor) -> Any:
        return attn.run(q, (K, V), **{name: given[name]})

    with pytest.raises(Exception, match=f"forward only and {name}"):
        compiled(layer)(Q)
