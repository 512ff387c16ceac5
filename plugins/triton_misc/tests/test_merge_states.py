"""More states than a program asks for at once; heads that share one; heads wider than a tile."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnhub.cascade import merge_states
from attnhub.plugin import Extent, describe, registry
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub_triton_misc.merge_states import merge_states as planner
from attnhub_triton_misc.settings import ROOM_OF_FEW, merged

MANY = 70


def expected(o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    total = lse.double().logsumexp(1)
    weight = (lse.double() - total[:, None]).exp().nan_to_num()
    return (o.nan_to_num() * weight[..., None]).sum(1), total


@pytest.mark.parametrize(
    "lse",
    [
        pytest.param(torch.linspace(-200, 200, MANY), id="rising"),
        pytest.param(torch.linspace(200, -200, MANY), id="falling"),
        pytest.param(torch.full((MANY,), 3e4), id="far-from-0"),
        pytest.param(torch.tensor([-math.inf] * 66 + [1.0] * 4), id="the-first-group-empty"),
        pytest.param(torch.tensor([1.0] * 3 + [-math.inf] * 67), id="the-last-group-empty"),
        pytest.param(torch.full((MANY,), -math.inf), id="all-empty"),
    ],
)
def test_states_that_pass_in_groups(lse: Tensor, device: torch.device) -> None:
    assert merged(MANY, 1, 128, 2).states < MANY
    o = torch.randn(2, MANY, 1, 128, generator=seeded(0)).to(device)
    lse = lse[None, :, None].repeat(2, 1, 1).to(device)
    o[lse == -math.inf] = math.nan
    found, wanted = merge_states(o, lse), expected(o, lse)
    assert_close(found[0], wanted[0])
    assert_close(found[1], wanted[1].float(), kind="lse")


def test_heads_that_share_a_program(device: torch.device) -> None:
    """As if tokens were so many that heads share one, and one state after another passes by."""
    heads = 20
    problem = registry().problem_class("cascade.merge_states")(
        device=describe(device),
        extent=Extent(tokens=1 << 20),
        dtype="float32",
        num_heads=heads,
        head_dim=128,
        num_states=3,
    )
    tile = merged(3, heads, 128, heads << 20)
    assert 1 < tile.rows < heads
    assert tile.states == 1
    o = torch.randn(2, 3, heads, 128, generator=seeded(0)).to(device)
    lse = torch.randn(2, 3, heads, generator=seeded(1)).to(device)
    lse[0, 0], o[0, 0] = -math.inf, math.nan
    found = torch.full_like(o[:, 0], math.nan), torch.full_like(lse[:, 0], math.nan)
    planner.plan(problem).run(o, lse, *found)
    wanted = expected(o, lse)
    assert_close(found[0], wanted[0])
    assert_close(found[1], wanted[1], kind="lse")


def test_heads_wider_than_a_tile(device: torch.device) -> None:
    o = torch.randn(1, 2, 1, ROOM_OF_FEW + 3, generator=seeded(0)).to(device)
    lse = torch.tensor([1.0, 2.0], device=device).view(1, 2, 1)
    found, wanted = merge_states(o, lse), expected(o, lse)
    assert_close(found[0], wanted[0])
    assert_close(found[1], wanted[1].float(), kind="lse")
