"""What a plan keeps and forgets: replanning, graph buffers, decisions, the problem behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from attnhub import GraphLimits
from attnhub.errors import InvalidArgument, UnknownName
from attnhub.mla import BatchMLA, MLAScales
from attnhub.mla.problem import MLAProblem
from attnhub.mla.workloads import mla as workloads
from attnhub.testing.compare import assert_close
from tests.mla.problems import SmallMLA, batch_mla, expected, make

SHORT = SmallMLA(seed=1, lens=((1, 3),))
LONG = SmallMLA(seed=2, lens=((2, 9), (0, 4), (1, 1)))
LIMITS = GraphLimits(max_batch=4, max_qo_tokens=6, max_pages=8)


def run_and_check(mla: BatchMLA, problem: SmallMLA) -> None:
    t = make(problem)
    mla.plan(t.qo_indptr, t.table)
    out, lse = mla.run(t.q_nope, t.q_pe, t.kv, return_lse=True)
    expected_out, expected_lse = expected(problem)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse, kind="lse")


def test_each_plan_replaces_the_last() -> None:
    mla = batch_mla(SHORT)
    for problem in (SHORT, LONG, SHORT):
        run_and_check(mla, problem)


def test_one_plan_serves_every_layer() -> None:
    mla, t = batch_mla(LONG), make(LONG)
    mla.plan(t.qo_indptr, t.table)
    layers = [t.kv, (t.kv[0] * 0.5, t.kv[1] * 2.0)]
    first, second = (mla.run(t.q_nope, t.q_pe, kv) for kv in layers)
    assert_close(first, expected(LONG)[0])
    assert_close(second, mla.run(t.q_nope, t.q_pe, t.kv, scales=MLAScales(ckv=0.5, kpe=2.0)))
    assert not torch.equal(first, second)


def test_a_refused_plan_leaves_the_last_one() -> None:
    mla, t = batch_mla(SHORT), make(SHORT)
    mla.plan(t.qo_indptr, t.table)
    with pytest.raises(InvalidArgument, match="int32"):
        mla.plan(t.qo_indptr.long(), t.table)
    assert_close(mla.run(t.q_nope, t.q_pe, t.kv), expected(SHORT)[0])


def test_planned_for_one_batch_and_run_with_another() -> None:
    mla, long = batch_mla(SHORT), make(LONG)
    mla.plan(make(SHORT).qo_indptr, make(SHORT).table)
    with pytest.raises(InvalidArgument, match="q_nope has 3 rows, but the plan has 1 query"):
        mla.run(long.q_nope, long.q_pe, long.kv)


def test_metadata_may_change_after_the_plan_of_a_graph() -> None:
    mla, t = batch_mla(LONG, LIMITS), make(LONG)
    mla.plan(t.qo_indptr, t.table)
    for x in (t.qo_indptr, t.table.indptr, t.table.indices, t.table.last_page_len):
        x.fill_(-1)
    assert_close(mla.run(t.q_nope, t.q_pe, t.kv), expected(LONG)[0])


def test_graph_buffers_keep_their_addresses() -> None:
    mla = batch_mla(SHORT, LIMITS)

    def addresses() -> list[int]:
        batch: Any = mla._batch
        table = batch.kv
        buffers = (batch.qo_indptr, table.indptr, table.indices, table.last_page_len)
        return [x.data_ptr() for x in buffers]

    run_and_check(mla, SHORT)
    first, run = addresses(), mla._run
    for problem in (LONG, SmallMLA(lens=()), SHORT):
        run_and_check(mla, problem)
        assert addresses() == first
        assert mla._run == run  # a captured plan is the one that is updated


def test_a_graph_batch_is_padded_with_empty_requests() -> None:
    mla = batch_mla(SHORT, LIMITS)
    for problem in (LONG, SHORT):
        t = make(problem)
        mla.plan(t.qo_indptr, t.table)
    batch: Any = mla._batch
    assert batch.batch == 4
    assert batch.qo_indptr.tolist() == [0, 1, 1, 1, 1]
    assert batch.kv.indptr.tolist() == [0, 1, 1, 1, 1]
    assert batch.kv.last_page_len.tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param({"max_batch": 2}, r"batch is 3, past GraphLimits\(max_batch=2\)", id="batch"),
        pytest.param({"max_qo_tokens": 2}, r"qo_tokens is 3, past", id="tokens"),
        pytest.param({"max_pages": 4}, r"pages is 5, past GraphLimits\(max_pages=4\)", id="pages"),
    ],
)
def test_a_graph_refuses_a_batch_past_its_limits(limits: dict[str, int], message: str) -> None:
    sizes = {"max_batch": 4, "max_qo_tokens": 6, "max_pages": 8} | limits
    mla, t = batch_mla(LONG, GraphLimits(**sizes)), make(LONG)
    with pytest.raises(InvalidArgument, match=message):
        mla.plan(t.qo_indptr, t.table)


@pytest.mark.parametrize("rows", [2, 7])  # fewer than the plan, more than the limit
def test_a_graph_refuses_other_rows(rows: int) -> None:
    mla, t = batch_mla(LONG, LIMITS), make(LONG)
    mla.plan(t.qo_indptr, t.table)
    with pytest.raises(InvalidArgument, match=rf"q_nope has {rows} rows, needs 3 .* to 6"):
        mla.run(torch.zeros(rows, 2, 8), torch.zeros(rows, 2, 4), t.kv)


def test_absorption_gives_what_the_unabsorbed_heads_compute() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    tokens, heads, nope, rotary, latent = 5, 3, 6, 4, 8
    w_uk, w_uv = random(heads, nope, latent), random(heads, latent, nope)
    q, q_pe = random(tokens, heads, nope), random(tokens, heads, rotary)
    ckv, kpe = random(tokens, latent), random(tokens, rotary)
    scale = (nope + rotary) ** -0.5
    k = torch.cat([torch.einsum("tc,hdc->thd", ckv, w_uk), kpe[:, None].expand(-1, heads, -1)], -1)
    v = torch.einsum("tc,hcv->thv", ckv, w_uv)
    wanted = attnhub.attention(torch.cat([q, q_pe], -1), k, v, causal=True)

    mla = BatchMLA(
        heads, "float32", head_dim=(latent, rotary), page_size=tokens, scale=scale, device="cpu"
    )
    int32 = {"dtype": torch.int32}
    table = attnhub.PagedKV(
        torch.tensor([0, 1], **int32), torch.tensor([0], **int32), torch.tensor([tokens], **int32)
    )
    mla.plan(torch.tensor([0, tokens], **int32), table)
    absorbed = torch.einsum("thd,hdc->thc", q, w_uk)
    out = torch.einsum("thc,hcv->thv", mla.run(absorbed, q_pe, (ckv[None], kpe[None])), w_uv)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_explain_names_the_backend_and_the_facts() -> None:
    mla, t = batch_mla(LONG), make(LONG)
    mla.plan(t.qo_indptr, t.table)
    text = str(mla.explain())
    for part in ("mla on cpu: reference", "head_dim_ckv=8", "page_size=4", "features=causal"):
        assert part in text


def test_explain_without_tensors_takes_what_the_constructor_takes() -> None:
    facts = {"num_heads": 128, "dtype": "bfloat16", "page_size": 64, "batch": 64, "qo_len": 1}
    decision = attnhub.explain("mla", device="h100", **facts)
    for part in ("head_dim_ckv=512", "head_dim_kpe=64", "features=causal", "kv_len unknown"):
        assert part in str(decision)
    other = attnhub.explain("mla", device="h100", head_dim=(256, 32), causal=False, **facts)
    assert "head_dim_ckv=256, head_dim_kpe=32" in str(other)
    assert "causal" not in str(other)
    with pytest.raises(InvalidArgument, match="also needs the facts head_dim_ckv"):
        attnhub.explain("mla", device="h100", head_dim_kpe=32, **facts)
    with pytest.raises(UnknownName, match="num_kv_heads"):
        attnhub.explain("mla", device="h100", num_kv_heads=1, **facts)


def test_the_reference_refuses_to_be_captured() -> None:
    facts = {"num_heads": 16, "dtype": "bfloat16", "page_size": 64}
    decision = attnhub.explain("mla", device="h100", graph=True, **facts)
    assert "reference" in {r.name for r in decision.rejected}


def test_work_counts_each_latent_row_once() -> None:
    facts = {"num_heads": 128, "dtype": "bfloat16", "page_size": 64}
    work = MLAProblem.of("cpu", batch=4, qo_len=1, kv_len=1024, **facts).work()
    assert work.flops == 2 * 4 * 1024 * 128 * (576 + 512)
    assert work.bytes == 2 * (4 * 1024 * 576 + 4 * 128 * (576 + 512))
    assert not work.assumed
    square = MLAProblem.of("cpu", batch=4, qo_len=1024, kv_len=1024, **facts).work()
    assert square.flops == 4 * 1024 * 1024 * 128 * (576 + 512)  # half of it is masked
    assert "kv_len" in MLAProblem.of("cpu", **facts).work().assumed


@pytest.mark.parametrize("workload", workloads, ids=lambda w: w.name)
def test_workloads(workload: Any) -> None:
    assert workload.work.flops > 0
    if "small" in workload.tags:
        out = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()
        assert out.isfinite().all()
        assert out.abs().sum() > 0
