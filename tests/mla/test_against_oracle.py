"""Latent attention against an independent float64 loop, over every fact and combination."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnhub import GraphLimits
from attnhub.testing.compare import assert_close
from tests.mla.problems import SmallMLA, batch_mla, expected, make, problems


def check(out: torch.Tensor, lse: torch.Tensor, problem: SmallMLA) -> None:
    expected_out, expected_lse = expected(problem)
    # Inputs are equal to the last bit and sums are float32, so only the output's dtype rounds.
    assert_close(out, expected_out, name="out")
    assert_close(lse, expected_lse, dtype=torch.float32, kind="lse", name="lse")


@settings(max_examples=2500, deadline=None, derandomize=True)
@given(problems(), st.booleans())
@example(SmallMLA(lens=()), False)  # no request at all
@example(SmallMLA(lens=((0, 0), (2, 0), (0, 3))), True)  # no query, no key, neither
@example(SmallMLA(lens=((5, 2),)), True)  # the first three of five queries see no key
@example(SmallMLA(lens=((1, 16), (1, 17)), page_size=16), False)  # a full page, one token more
def test_reference_equals_a_float64_loop(problem: SmallMLA, given_out: bool) -> None:
    t = make(problem)
    mla = batch_mla(problem, backend="reference")
    mla.plan(t.qo_indptr, t.table)
    out = torch.full_like(t.q_nope, torch.nan, dtype=getattr(torch, problem.dtypes[2]))
    result, lse = mla.run(
        t.q_nope, t.q_pe, t.kv, scales=t.scales, out=out if given_out else None, return_lse=True
    )
    assert (result is out) == given_out
    assert result.dtype == out.dtype
    check(result, lse, problem)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(problems(), st.integers(0, 2), st.integers(0, 3))
def test_graph_mode_equals_the_loop_and_pads_with_zeros(
    problem: SmallMLA, more_requests: int, more_rows: int
) -> None:
    t = make(problem)
    limits = GraphLimits(
        max_batch=max(len(problem.lens), 1) + more_requests,
        max_qo_tokens=max(problem.tokens, 1) + more_rows,
        max_pages=t.table.indices.numel() + 2,
    )
    mla = batch_mla(problem, limits, backend="reference")
    mla.plan(t.qo_indptr, t.table)
    # Rows past the batch hold what the last, larger batch left there; here the worst: NaN.
    rows = limits.max_qo_tokens
    q_nope, q_pe = (x.new_full((rows, *x.shape[1:]), torch.nan) for x in (t.q_nope, t.q_pe))
    q_nope[: problem.tokens], q_pe[: problem.tokens] = t.q_nope, t.q_pe
    out = torch.full_like(q_nope, torch.nan, dtype=getattr(torch, problem.dtypes[2]))
    _, lse = mla.run(q_nope, q_pe, t.kv, scales=t.scales, out=out, return_lse=True)
    check(out[: problem.tokens], lse[: problem.tokens], problem)
    assert (out[problem.tokens :] == 0).all()
    assert (lse[problem.tokens :] == -torch.inf).all()
