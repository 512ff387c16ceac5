"""What only a GPU can show of a plan: nothing waits for it, and a CUDA graph holds it."""

from __future__ import annotations

import pytest
import torch

from attnhub.core import device as devices
from attnhub.kernels.schedule import WorkSchedule
from attnhub.testing.waiting import no_waiting
from tests.kernels.batches import FIXED, MIXED, PAGE, Batch, check, random_lengths

pytestmark = pytest.mark.gpu


def planned(lengths: list[tuple[int, int]], *, is_fixed: bool) -> tuple[WorkSchedule, Batch]:
    """A schedule for a graph, with a batch that a first plan has seen."""
    device = devices.describe("cuda:0")
    sections = (FIXED,) if is_fixed else MIXED
    batch = Batch.of(lengths, device)
    work = WorkSchedule(device, sections, max_batch=len(lengths), page_size=PAGE, is_frozen=True)
    batch.plan(work)
    return work, batch


def test_does_not_wait() -> None:
    work, batch = planned(random_lengths(100, 1), is_fixed=False)
    with no_waiting():
        batch.plan(work)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("size", [1, 256, 5000])  # one, some, several to a thread
def test_graph_with_other_lengths(size: int, *, is_fixed: bool) -> None:
    device = devices.describe("cuda:0")
    work, batch = planned(random_lengths(size, 0, longest=8), is_fixed=is_fixed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch.plan(work)
    for seed in range(1, 5):
        # Workers leave their counters at zero, but a run that was cut short may not.
        for name, part in work.workspace.parts.items():
            part.fill_(77 if name.startswith("counters") else -1)
        other = Batch.of(random_lengths(size, seed, longest=8), device)
        batch.copy_(other)
        graph.replay()
        check(work, other, device)


@pytest.mark.parametrize("last", ["kernel", "copy"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_lengths_made_just_before(last: str, *, in_graph: bool) -> None:
    """A plan starts while what comes before it ends, and has to wait for what that writes."""
    device = devices.describe("cuda:0")
    work, batch = planned([(1, 1)] * 300, is_fixed=False)
    other = Batch.of(random_lengths(300, 1), device)

    def make_and_plan() -> None:
        if last == "copy":
            torch.mul(other.qo_indptr, 1, out=batch.qo_indptr)
        batch.copy_(other)
        if last == "kernel":
            torch.mul(other.kv_indptr, 1, out=batch.kv_indptr)
        batch.plan(work)

    if in_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            make_and_plan()
        graph.replay()
    else:
        make_and_plan()
    check(work, other, device)


def test_plans_follow_each_other() -> None:
    """Many in a row, without a wait between: the last one holds."""
    work, _ = planned(random_lengths(300, 0), is_fixed=False)
    device = devices.describe("cuda:0")
    batches = [Batch.of(random_lengths(300, seed), device) for seed in range(20)]
    for batch in batches:
        batch.plan(work)
    check(work, batches[-1], device)
