"""The plan kernel by its host side, in the emulator and on a GPU: every worker reads its share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.errors import InvalidArgument
from attnhub.kernels.schedule import WorkSchedule
from attnhub.kernels.section import Section
from tests.kernels import pieces
from tests.kernels.batches import (
    DECODE,
    FIXED,
    MIXED,
    PAGE,
    PREFILL,
    Batch,
    check,
    cumulative,
    random_lengths,
)
from tests.kernels.schedule_model import Lengths


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cuda":
        return devices.describe("cuda:0")
    gpu = request.getfixturevalue("emulated_gpu")
    gpu.seed = request.node.callspec.params.get("seed", 0)
    return gpu.device


def made(device: Device, *sections: Section, max_batch: int = 64) -> WorkSchedule:
    return WorkSchedule(device, sections, max_batch=max_batch, page_size=PAGE)


@pytest.mark.parametrize(
    ("batch", "seed"),
    [
        pytest.param(0, 0, id="empty"),
        pytest.param(1, 1, id="one"),
        pytest.param(300, 2, id="a request to a thread"),
        pytest.param(1000, 3, id="two requests to a thread"),
        pytest.param(2497, 3, id="four, but one to the last thread"),
        pytest.param(10_000, 0, id="all that shared memory holds"),
        pytest.param(10_001, 4, id="in global memory"),
    ],
)
def test_decode(device: Device, batch: int, seed: int) -> None:
    asked = Batch.of([(1, kv_len) for _, kv_len in random_lengths(batch, seed)], device)
    work = made(device, DECODE, max_batch=max(batch, 1))
    asked.plan(work)
    check(work, asked, device)


@pytest.mark.parametrize("sections", [MIXED, (PREFILL,), (FIXED,), (FIXED, PREFILL)])
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed(device: Device, sections: tuple[Section, ...], seed: int) -> None:
    asked = Batch.of(random_lengths(200, seed), device)
    work = made(device, *sections, max_batch=200)
    asked.plan(work)
    check(work, asked, device)


def test_same_batch_same_bytes(device: Device) -> None:
    asked = Batch.of(random_lengths(100, 7), device)
    found = []
    for old in (-1, 12345):  # what a workspace held before
        work = made(device, *MIXED, max_batch=100)
        for part in work.workspace.parts.values():
            part.fill_(old)
        asked.plan(work)
        written = {name: part.tolist() for name, part in work.workspace.parts.items()}
        found.append(written)
    assert found[0] == found[1]


@pytest.mark.parametrize("batch", [100, 2000])
def test_fixed_cuts_do_not_depend_on_the_rest(device: Device, batch: int) -> None:
    """The last request of a batch is cut as it is alone, also where a thread has two."""
    own = (9, 3000)

    def cuts(lengths: list[Lengths]) -> list[tuple[int, ...]]:
        asked = Batch.of(lengths, device)
        work = made(device, replace(FIXED, fixed_slots=20_000), max_batch=len(lengths))
        asked.plan(work)
        found = (p for w in pieces.read(work, device, 0) for p in w)
        return [
            (p.tile, p.kv_begin, p.kv_end, p.piece_idx, p.num_pieces)
            for p in found
            if p.request_idx == len(lengths) - 1
        ]

    alone = cuts([own])
    assert [end for tile, _, end, *_ in alone if tile == 0] == [*range(256, 3000, 256), 3000]
    assert cuts([*random_lengths(batch - 1, 3, longest=10), own]) == alone


def test_fixed_cuts_stop_where_slots_end(device: Device) -> None:
    asked = Batch.of([(1, 1000)] * 10, device)  # 4 pieces each
    work = made(device, replace(FIXED, fixed_slots=9))
    asked.plan(work)
    check(work, asked, device)
    found = pieces.read(work, device, 0)
    assert sum(p.num_pieces == 4 for w in found for p in w) == 2 * 4


def _ragged(work: WorkSchedule, batch: Batch, kv_indptr: Tensor, kv_lens: Tensor) -> None:
    work.plan(batch.qo_indptr, kv_indptr)


def _given(work: WorkSchedule, batch: Batch, kv_indptr: Tensor, kv_lens: Tensor) -> None:
    work.plan(batch.qo_indptr, kv_indptr, kv_lens=kv_lens)


@pytest.mark.parametrize("plan", [_ragged, _given])
def test_other_ways_to_say_lengths(device: Device, plan: Callable[..., None]) -> None:
    batch = Batch.of(random_lengths(50, 2), device)
    kv_lens = torch.tensor([kv_len for _, kv_len in batch.lengths], dtype=torch.int32)
    rows = replace(batch, kv_indptr=cumulative(kv_lens).to(batch.qo_indptr.device))
    work = made(device, *MIXED)
    plan(work, rows, rows.kv_indptr, kv_lens.to(batch.qo_indptr.device))
    check(work, rows, device)


def test_lengths_that_are_no_lengths_count_as_none(device: Device) -> None:
    """Nobody has looked at what lies on the device."""
    batch = Batch.of([(1, 100), (1, 20), (1, 300)], device)
    work = made(device, DECODE)
    batch.qo_indptr[1:3] = torch.tensor([5, 2])  # 5, -3 and 1 queries
    batch.kv_indptr[2:] = torch.tensor([2, 10])  # 7, -5 and 8 pages
    batch.plan(work)
    found = [p.request_idx for w in pieces.read(work, device, 0) for p in w if p.kv_begin == 0]
    assert found == [0] * 5 + [2]


def test_grows_with_the_batch(device: Device) -> None:
    work = made(device, DECODE, max_batch=2)
    for size in (2, 50, 3):
        batch = Batch.of(random_lengths(size, size), device)
        batch.plan(work)
        check(work, batch, device)
    assert work.max_batch == 64


def test_does_not_grow_under_a_graph(device: Device) -> None:
    work = WorkSchedule(device, [DECODE], max_batch=2, page_size=PAGE, is_frozen=True)
    before = work.schedule(0)
    with pytest.raises(InvalidArgument, match=r"batch is 3.*max_batch=2,.*max_batch=3 or more"):
        Batch.of([(1, 1)] * 3, device).plan(work)
    Batch.of([(1, 1)] * 2, device).plan(work)
    assert work.schedule(0) == before


@pytest.mark.parametrize("count", [0, 3])
def test_takes_one_or_two_sections(device: Device, count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{count} sections: give 1 to 2"):
        made(device, *[DECODE] * count)
