"""``attnhub::mla_run``: what torch checks of an op, and compiled calls that equal eager ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnhub.attn import inputs
from attnhub.mla import MLAScales
from attnhub.testing.compare import assert_close
from tests.mla.problems import SmallMLA, batch_mla, expected, make

PLAIN = SmallMLA(lens=((1, 5), (3, 4), (0, 2)))
NUMBERS = SmallMLA(lens=PLAIN.lens, dtypes=("float32", "float8_e4m3fn", "float32"), scales="number")
TENSORS = SmallMLA(lens=PLAIN.lens, dtypes=NUMBERS.dtypes, scales="tensor")


@pytest.mark.parametrize("with_lse", [True, False], ids=["with LSE", "without LSE"])
@pytest.mark.parametrize("scales", ["number", "tensor"])
def test_opcheck(scales: str, with_lse: bool) -> None:
    # torch's checks compare inputs before and after, which it cannot do for FP8 ones.
    problem = SmallMLA(lens=PLAIN.lens, scales=scales)
    t = make(problem)
    mla = batch_mla(problem)
    mla.plan(t.qo_indptr, t.table)
    flat = inputs.split_scales(ckv=t.scales.ckv, kpe=t.scales.kpe)
    out = torch.full_like(t.q_nope, torch.nan)
    lse = torch.full(t.q_nope.shape[:2], torch.nan) if with_lse else None
    args = (t.q_nope, t.q_pe, *t.kv, out, lse, *flat, mla._handle)
    torch.library.opcheck(torch.ops.attnhub.mla_run.default, args)
    torch.ops.attnhub.mla_run(*args)
    expected_out, expected_lse = expected(problem)
    assert_close(out, expected_out)
    if lse is not None:
        assert_close(lse, expected_lse, kind="lse")


@pytest.mark.parametrize("problem", [PLAIN, NUMBERS, TENSORS], ids=["plain", "numbers", "tensors"])
def test_fullgraph_equals_eager(problem: SmallMLA) -> None:
    t = make(problem)
    mla = batch_mla(problem)
    mla.plan(t.qo_indptr, t.table)

    def layer(
        q_nope: torch.Tensor, q_pe: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor
    ) -> Any:
        out, lse = mla.run(q_nope * 1.0, q_pe, (ckv, kpe), scales=t.scales, return_lse=True)
        return out + 0.0, lse

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    eager = layer(t.q_nope, t.q_pe, *t.kv)
    for got, wanted in zip(compiled(t.q_nope, t.q_pe, *t.kv), eager, strict=True):
        assert torch.equal(got, wanted)
    assert_close(eager[0], expected(problem)[0])


def test_a_new_plan_does_not_compile_anew() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    mla = batch_mla(PLAIN)
    out = torch.empty(4, PLAIN.heads, PLAIN.dims[0])

    def layer(
        q_nope: torch.Tensor, q_pe: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor
    ) -> Any:
        return mla.run(q_nope, q_pe, (ckv, kpe), out=out)

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for seed, lens in enumerate((((1, 5), (3, 4), (0, 2)), ((2, 4), (2, 7)), ((4, 9),))):
        problem = SmallMLA(seed=seed, lens=lens, spare_pages=0)
        t = make(problem)
        assert t.kv[0].shape[0] <= 5
        pages = [torch.full((5, *x.shape[1:]), torch.nan) for x in t.kv]
        for page, x in zip(pages, t.kv, strict=True):
            page[: x.shape[0]] = x
        mla.plan(t.qo_indptr, t.table)
        assert_close(compiled(t.q_nope, t.q_pe, *pages), expected(problem)[0])
    assert len(graphs) == 1


def test_a_default_object_of_scales_compiles_too() -> None:
    t = make(PLAIN)
    mla = batch_mla(PLAIN)
    mla.plan(t.qo_indptr, t.table)

    def layer(q_nope: torch.Tensor) -> Any:
        return mla.run(q_nope, t.q_pe, t.kv, scales=MLAScales(ckv=2.0))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(t.q_nope), layer(t.q_nope))
    assert not torch.equal(compiled(t.q_nope), mla.run(t.q_nope, t.q_pe, t.kv))
