"""The merges of two states where conformance does not reach: strides, wide heads, masked rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnhub.cascade import merge_state, merge_state_
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub_triton_misc.settings import SMALL_STREAM

State = tuple[Tensor, Tensor]


def states(tokens: int, heads: int, dim: int, device: torch.device) -> tuple[State, State]:
    """``[heads, tokens]`` in memory; one of each two rows of the second is empty and NaN."""
    o = torch.randn(2, heads, tokens, dim, generator=seeded(0))
    lse = 3 * torch.randn(2, tokens, heads, generator=seeded(1))
    lse[1, ::2] = -math.inf
    o[1, :, ::2] = math.nan
    a, b = zip(o.transpose(1, 2).to(device), lse.to(device), strict=True)
    return a, b


def expected(a: State, b: State) -> State:
    lse = torch.logaddexp(a[1].double(), b[1].double())
    weight = [(x[1] - lse).exp()[..., None] for x in (a, b)]
    return a[0] * weight[0] + b[0].nan_to_num() * weight[1], lse


@pytest.mark.parametrize(
    ("heads", "dim"),
    [
        pytest.param(3, SMALL_STREAM.block + 44, id="heads-wider-than-a-tile"),
        pytest.param(5, 8, id="fewer-heads-than-a-tile-has-rows"),
    ],
)
def test_strides_of_tokens_and_heads_exchanged(heads: int, dim: int, device: torch.device) -> None:
    a, b = states(4, heads, dim, device)
    o, lse = expected(a, b)
    found = merge_state(*a, *b)
    assert_close(found[0], o)
    assert_close(found[1], lse, kind="lse")
    merge_state(*a, *b, out=a)
    assert torch.equal(a[0], found[0])
    assert torch.equal(a[1], found[1])


def test_masked_tokens_keep_their_bits(device: torch.device) -> None:
    a, b = states(6, 3, SMALL_STREAM.block + 44, device)
    a[0][1] = math.nan
    a[1][1] = math.inf
    mask = torch.tensor([True, False, False, True, True, False], device=device)
    before, (o, lse) = tuple(x.clone() for x in a), expected(a, b)
    merge_state_(*a, *b, mask=mask)
    for got, was in zip(a, before, strict=True):
        assert torch.equal(got[~mask].view(torch.int32), was[~mask].view(torch.int32))
    assert_close(a[0][mask], o[mask])
    assert_close(a[1][mask], lse[mask], kind="lse")
