"""Requests and positions of batches that take more than a few steps to search."""

from __future__ import annotations

import pytest
import torch

from attnhub.page import get_batch_indices_positions


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(1, id="one step"),
        pytest.param(511, id="all bits of the count are set"),
        pytest.param(512, id="a step for one request"),
    ],
)
def test_many_requests(batch: int, device: torch.device) -> None:
    new = torch.randint(0, 3, (batch,), generator=torch.Generator().manual_seed(batch))
    new[-1] = 2
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), new.cumsum(0)]).int()
    lengths = (new + torch.arange(batch)).int()  # request b had b tokens
    rows = int(indptr[-1]) + 200
    found = get_batch_indices_positions(indptr.to(device), lengths.to(device), rows)
    owners = torch.arange(batch).repeat_interleave(new)
    places = torch.cat([torch.arange(b, b + n) for b, n in enumerate(new.tolist())])
    padding = torch.full((200,), -1)
    assert found[0].tolist() == torch.cat([owners, padding]).tolist()
    assert found[1].tolist() == torch.cat([places, padding]).tolist()
