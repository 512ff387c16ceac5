"""Bits where the conformance suite does not reach: whole tiles, and addresses that are not even."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from attnhub.quantization import packbits, segment_packbits, unpackbits
from attnhub_triton_misc.segment_packbits import segment_packbits as segment

#: Booleans of a tile are 8192; the second is one boolean more than two of them.
COUNTS = (8192, 16385)
STARTS = [pytest.param(0, id="aligned"), pytest.param(3, id="three bytes behind")]
ORDERS = ("little", "big")


def booleans(count: int, start: int, device: torch.device) -> Tensor:
    """Random ones that start so many bytes behind an aligned address; others lie around them."""
    generator = torch.Generator().manual_seed(count)
    whole = torch.rand(start + count + 5, generator=generator) < 0.5
    return whole.to(device)[start : start + count]


def packed(x: Tensor, order: str) -> list[int]:
    return np.packbits(x.cpu().numpy(), bitorder=order).tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", COUNTS)
def test_packbits_and_back(count: int, start: int, order: str, device: torch.device) -> None:
    x = booleans(count, start, device)
    found = packbits(x, bitorder=order)
    assert found.tolist() == packed(x, order)
    out = torch.zeros(start + count + 5, dtype=torch.bool, device=device)
    unpackbits(found, count, bitorder=order, out=out[start : start + count])
    assert torch.equal(out[start : start + count], x)
    assert not out[:start].any()
    assert not out[start + count :].any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("start", STARTS)
def test_segment_packbits(start: int, order: str, device: torch.device) -> None:
    # Three tiles each, so that at least one is whole: 1, 2 and 3 booleans behind a word's first.
    sizes = (8192, 13, 24573, 24573, 24573, 0, 8192)
    starts = [0, *itertools.accumulate(sizes)]
    x = booleans(starts[-1], start, device)
    room = 3 + sum(-(-size // 8) for size in sizes)
    indptr = torch.tensor(starts, dtype=torch.int32, device=device)
    found, byte_indptr = segment_packbits(x, indptr, bitorder=order, total_bytes=room)
    parts = [packed(x[a:b], order) for a, b in itertools.pairwise(starts)]
    assert byte_indptr.tolist() == [0, *itertools.accumulate(map(len, parts))]
    assert found.tolist() == [*itertools.chain(*parts), 0, 0, 0]


def test_what_does_not_fit_is_dropped(device: torch.device) -> None:
    # Past the public function, which on the host sees that it does not fit.
    x = booleans(20000, 0, device)
    indptr = torch.tensor([0, 20000], dtype=torch.int32, device=device)
    whole = torch.full((2000,), 7, dtype=torch.uint8, device=device)
    segment.plan(None).run(x, indptr, whole[:1500], torch.empty_like(indptr), "little")
    assert whole.tolist() == packed(x, "little")[:1500] + [7] * 500


def test_more_segments_than_a_program_scans(device: torch.device) -> None:
    sizes = [(7 * i) % 11 for i in range(1030)]
    starts = [0, *itertools.accumulate(sizes)]
    x = booleans(starts[-1], 0, device)
    indptr = torch.tensor(starts, dtype=torch.int32, device=device)
    room = sum(-(-size // 8) for size in sizes)
    found, byte_indptr = segment_packbits(x, indptr, total_bytes=room)
    parts = [packed(x[a:b], "little") for a, b in itertools.pairwise(starts)]
    assert byte_indptr.tolist() == [0, *itertools.accumulate(map(len, parts))]
    assert found.tolist() == list(itertools.chain(*parts))
