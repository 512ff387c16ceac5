"""The reference against an independent float64 loop, over every feature and combination."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnhub.testing.compare import assert_close
from tests.attn.run_problem import run
from tests.oracle import problems as oracle

EXAMPLES = 600


def check(problem: oracle.SmallProblem, backend: str, packed: bool) -> None:
    out, lse = run(problem, backend, packed)
    expected, expected_lse = oracle.expected(problem)
    # Inputs are equal to the last bit and both sides accumulate a few terms: float32 rounding only.
    torch.testing.assert_close(out.double(), expected, rtol=2e-4, atol=2e-5)
    if lse is not None:
        torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", oracle.ALL_KINDS)
def test_reference_equals_a_float64_loop(kind: oracle.Kind) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
    @given(oracle.problems(kinds=(kind,)), st.booleans())
    def examine(problem: oracle.SmallProblem, packed: bool) -> None:
        if problem.features.rope is None or not problem.features.rope.inv_freq:
            check(problem, "reference", packed)

    examine()


def served_by_sdpa(problem: oracle.SmallProblem) -> bool:
    f = problem.features
    mods = (f.score_mod, f.mask_mod, f.query_mod, f.key_mod, f.output_mod)
    others = (f.soft_cap, f.alibi, f.sinks, f.rope, *mods, not f.softmax)
    return not any(others) and problem.q_dtype == problem.kv_dtype


@pytest.mark.parametrize("kind", ["ragged", "paged"])
def test_sdpa_equals_the_loop_where_it_serves(kind: oracle.Kind) -> None:
    seeds = (oracle.random_problem(seed, kinds=(kind,)) for seed in range(6000))
    served = [p for p in seeds if served_by_sdpa(p)]
    assert len(served) > 100
    for problem in served:
        out, lse = run(problem, "torch_sdpa", packed=False)
        expected, expected_lse = oracle.expected(problem)
        dtype = getattr(torch, problem.q_dtype)
        assert_close(out, expected, dtype=dtype, name=str(problem))
        if lse is not None:
            assert_close(lse, expected_lse, dtype=dtype, kind="lse", name=str(problem))
