"""Merging partial attention against attention over all keys at once, in Python floats."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnhub.cascade import reference
from attnhub.testing.compare import assert_close

INF = math.inf


def attend(logits: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over keys in float64: logits [tokens, heads, keys], values [keys, heads, dim]."""
    tokens, heads, _ = logits.shape
    o = torch.zeros(tokens, heads, values.shape[2], dtype=torch.float64)
    lse = torch.full((tokens, heads), -INF, dtype=torch.float64)
    for t in range(tokens):
        for h in range(heads):
            row = logits[t, h].tolist()
            if not row:
                continue
            weights = [math.exp(v - max(row)) for v in row]
            total = math.fsum(weights)
            lse[t, h] = max(row) + math.log(total)
            for key, weight in enumerate(weights):
                o[t, h] += weight / total * values[key, h].double()
    return o, lse


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def parts_of(
    logits: torch.Tensor, values: torch.Tensor, sizes: list[int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial states [tokens, n, heads, dim] and [tokens, n, heads] over consecutive keys."""
    parts = zip(logits.split(sizes, dim=-1), values.split(sizes), strict=True)
    states = [attend(part, value) for part, value in parts]
    o = torch.stack([state[0] for state in states], dim=1).to(dtype)
    return o, torch.stack([state[1] for state in states], dim=1).float()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([7], id="one-part"),
        pytest.param([32, 32], id="halves"),
        pytest.param([1, 111], id="uneven"),
        pytest.param([0, 5, 0], id="empty-parts"),
        pytest.param([0, 0], id="all-empty"),
        pytest.param([3] * 9, id="many"),
    ],
)
def test_merged_parts_are_the_whole(sizes: list[int], dtype: torch.dtype) -> None:
    logits, values = normal(3, 2, sum(sizes)), normal(sum(sizes), 2, 5, seed=1)
    o, lse = attend(logits, values)
    merged, merged_lse = reference.merge_states(*parts_of(logits, values, sizes, dtype))
    assert merged.dtype == dtype
    assert merged_lse.dtype == torch.float32
    # The float32 LSE of the parts limits a float64 merge.
    assert_close(merged, o, dtype=torch.float32 if dtype == torch.float64 else dtype)
    assert_close(merged_lse, lse, dtype=torch.float32, kind="lse")


def test_two_states_are_the_case_n_2() -> None:
    logits, values = normal(4, 3, 20), normal(20, 3, 7, seed=1)
    o, lse = parts_of(logits, values, [8, 12], torch.float32)
    whole, whole_lse = attend(logits, values)
    merged, merged_lse = reference.merge_state(o[:, 0], lse[:, 0], o[:, 1], lse[:, 1])
    assert_close(merged, whole)
    assert_close(merged_lse, whole_lse, dtype=torch.float32, kind="lse")


@pytest.mark.parametrize("poison", [math.nan, INF, -INF, 0.0, 1e30], ids=str)
@pytest.mark.parametrize("position", [0, 1], ids=["first-empty", "second-empty"])
def test_output_of_an_empty_state_does_not_leak(poison: float, position: int) -> None:
    o, lse = torch.full((1, 2, 1, 3), poison), torch.full((1, 2, 1), -INF)
    o[:, 1 - position], lse[:, 1 - position] = 2.5, -7.0
    merged, merged_lse = reference.merge_state(o[:, 0], lse[:, 0], o[:, 1], lse[:, 1])
    assert merged.tolist() == [[[2.5, 2.5, 2.5]]]
    assert merged_lse.tolist() == [[-7.0]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_empty_states_give_zero_and_minus_infinity(count: int) -> None:
    o = torch.full((2, count, 3, 4), torch.nan, dtype=torch.bfloat16)
    merged, lse = reference.merge_states(o, torch.full((2, count, 3), -INF))
    assert torch.equal(merged, torch.zeros(2, 3, 4, dtype=torch.bfloat16))
    assert torch.equal(lse, torch.full((2, 3), -INF))


def test_no_states_give_zero_and_minus_infinity() -> None:
    merged, lse = reference.merge_states(torch.empty(2, 0, 3, 4).half(), torch.empty(2, 0, 3))
    assert torch.equal(merged, torch.zeros(2, 3, 4).half())
    assert torch.equal(lse, torch.full((2, 3), -INF))


def test_no_tokens() -> None:
    merged, lse = reference.merge_states(torch.empty(0, 2, 3, 4), torch.empty(0, 2, 3))
    assert merged.shape == (0, 3, 4)
    assert lse.shape == (0, 3)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(-66854.0, id="-66854-below-any-finite-sentinel"),
        pytest.param(-524288.0 / 8, id="-65536"),
        pytest.param(66854.0, id="66854-exp-would-overflow"),
        pytest.param(-3.0e38, id="-3e38-edge-of-float32"),
    ],
)
def test_magnitude_of_lse_does_not_matter(base: float) -> None:
    o = torch.tensor([1.0, 3.0]).reshape(1, 2, 1, 1)
    merged, lse = reference.merge_states(o, torch.full((1, 2, 1), base))
    assert merged.item() == 2.0
    assert lse.item() == pytest.approx(base + math.log(2.0), rel=1e-7)


def test_lse_is_natural_not_base_two() -> None:
    # Weights 1 and 3. Taken as base 2 the same numbers would weigh 1 to 2.14.
    o, lse = torch.tensor([[[0.0]]]), torch.tensor([[0.0]])
    merged, merged_lse = reference.merge_state(o, lse, o + 1.0, lse + math.log(3.0))
    assert merged.item() == pytest.approx(0.75, rel=1e-6)
    assert merged_lse.item() == pytest.approx(math.log(4.0), rel=1e-6)


@given(
    lse=st.lists(st.one_of(st.just(-INF), st.floats(-1e4, 1e4, width=32)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_order_does_not_matter_and_weights_sum_to_one(lse: list[float], seed: int) -> None:
    n = len(lse)
    o, state_lse = normal(1, n, 1, 3, seed=seed).float(), torch.tensor(lse).reshape(1, n, 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    merged, merged_lse = reference.merge_states(o, state_lse)
    again, again_lse = reference.merge_states(o[:, order], state_lse[:, order])
    assert_close(again, merged)
    assert_close(again_lse, merged_lse, kind="lse")
    constant, _ = reference.merge_states(torch.ones_like(o), state_lse)
    seen = any(v != -INF for v in lse)
    torch.testing.assert_close(constant, torch.full((1, 1, 3), float(seen)))


def test_strided_states() -> None:
    o = normal(3, 4, 2, 5).float().permute(0, 2, 1, 3)
    lse = normal(3, 4, 2, seed=1).float().transpose(1, 2)
    merged, merged_lse = reference.merge_states(o, lse)
    expected, expected_lse = reference.merge_states(o.contiguous(), lse.contiguous())
    torch.testing.assert_close(merged, expected)
    torch.testing.assert_close(merged_lse, expected_lse)
