"""The paged-cache functions as torch ops: schema, torch.compile, workloads, problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub.page import api, workloads
from attnhub.page.problem import AppendPagedKVProblem, AppendPagedMLAProblem
from attnhub.page.reference import Layout
from tests.page.cache_cases import (
    DIM_K,
    DIM_V,
    HEADS,
    PAGE,
    PAGES,
    POSITION,
    REQUEST,
    TABLE,
    bits,
    caches,
    int32,
    normal,
)

INDEX = (TABLE.indptr, TABLE.indices, REQUEST, POSITION)
OPS = {
    "append_paged_kv": (
        normal(5, HEADS, DIM_K),
        normal(5, HEADS, DIM_V),
        torch.zeros(PAGES, PAGE, HEADS, DIM_K),
        torch.zeros(PAGES, PAGE, HEADS, DIM_V),
        *INDEX,
        "NHD",
    ),
    "append_paged_mla": (
        normal(5, 8),
        normal(5, 2),
        torch.zeros(PAGES, PAGE, 8),
        torch.zeros(PAGES, PAGE, 2),
        *INDEX,
    ),
    "get_batch_indices_positions": (int32(0, 2, 3), int32(4, 5), int32(0, 0, 0), int32(0, 0, 0)),
    "get_seq_lens": (TABLE.indptr, TABLE.last_page_len, int32(0, 0, 0), PAGE),
}


@pytest.mark.parametrize("name", OPS)
def test_is_a_well_formed_op(name: str) -> None:
    overload = getattr(api, f"_{name}").overload
    torch.library.opcheck(overload, OPS[name])
    overload(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in OPS[name]))


@pytest.fixture
def fresh_compiler() -> None:
    """Without what earlier tests compiled, which counts towards the limit of recompilations."""
    torch.compiler.reset()


def append_step(k_new: torch.Tensor, cache: Any, layout: Layout) -> torch.Tensor:
    """What a serving step does: where to, then append; reads the cache afterwards."""
    lens = attnhub.page.get_seq_lens(TABLE, PAGE)
    # The first request gets one token, the last all others.
    first, total = torch.ones_like(lens[:1]), lens.new_tensor([k_new.shape[0]])
    indptr = torch.cat([first - 1, first, first, total.to(lens.dtype)])
    where = attnhub.page.get_batch_indices_positions(indptr, lens, k_new.shape[0])
    attnhub.page.append_paged_kv(k_new, -k_new, cache, TABLE, *where, layout=layout)
    return cache.nansum() if isinstance(cache, torch.Tensor) else cache[0].nansum()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["one-tensor", "layer-of-a-stack", "two-tensors"])
def test_append_compiles_whole(form: str, layout: Layout, dynamic: bool) -> None:
    compiled = torch.compile(append_step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        new = normal(tokens, HEADS, DIM_K)
        eager, traced = (
            caches("one-tensor" if form == "two-tensors" else form, layout, torch.float32)
            for _ in range(2)
        )
        as_given = [
            c.given.unbind(1) if form == "two-tensors" else c.given for c in (eager, traced)
        ]
        expected = append_step(new, as_given[0], layout)
        assert torch.equal(compiled(new, as_given[1], layout), expected)
        assert torch.equal(bits(traced.k), bits(eager.k))
        assert torch.equal(bits(traced.v), bits(eager.v))
        assert int((~traced.k.isnan()).sum()) == tokens * HEADS * DIM_K


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_append_mla_compiles_whole(dynamic: bool) -> None:
    compiled = torch.compile(
        api.append_paged_mla, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    eager, traced = torch.zeros(PAGES, PAGE, 10), torch.zeros(PAGES, PAGE, 10)
    for run, cache in ((api.append_paged_mla, eager), (compiled, traced)):
        run(normal(5, 8), normal(5, 2), *cache.split((8, 2), -1), TABLE, REQUEST, POSITION)
    assert torch.equal(traced, eager)
    assert eager.any()


# --- workloads and problems -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            run = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))
            result = run()
            if "append" in name:
                # All requests but the first got their tokens, each a row in K and one in V.
                facts = workload.facts
                rows = result.any(-1).sum() // (16 if "kv" in name else 1)
                assert rows == facts["new"] * (facts["requests"] - 1)
            else:
                assert result is not None


def problem_of(cls: Callable[..., Any], **facts: Any) -> Any:
    return cls.of("h200", dtype="bfloat16", page_size=16, **facts)


@pytest.mark.usefixtures("isolated_registry")
def test_problems_tell_work() -> None:
    kv = problem_of(
        AppendPagedKVProblem, num_kv_heads=8, head_dim_qk=128, head_dim_vo=64, tokens=32
    )
    assert kv.work().bytes == 2 * 32 * 8 * (128 + 64) * 2
    mla = problem_of(AppendPagedMLAProblem, dim_ckv=512, dim_kpe=64)
    assert mla.work().bytes == 2 * 128 * 576 * 2
    assert "assumed 128" in mla.work().assumed
    for op in ("page.get_batch_indices_positions", "page.get_seq_lens"):
        for sizes in ({}, {"batch": 3}):
            assert attnhub.explain(op, device="h200", **sizes).chosen.name == "reference"
