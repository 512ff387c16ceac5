"""What the host spends on plan() and run() of attention, where a batch decodes from paged keys.

run() stands beside its own launch with all values at hand, which is what is left when everything
above it is taken away. Nothing waits for the device within what is timed.

    python plugins/fa2_cuda/benchmarks/host_time.py [--device cuda:0] [--out benchmarks/results]
        [--commit HASH]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnhub import Variant
from attnhub.attn import BatchAttention, Paged, PagedKV
from attnhub.testing import results, script
from attnhub_fa2_cuda.shares import ShareRun

SUITE = "fa2-cuda-host-time"
HEADS, HEAD_DIM, PAGE, DTYPE = (32, 8), 128, 16, torch.bfloat16
BATCHES = (1, 64, 1024)
PAGES_OF_EACH = 4

#: What is allowed, in microseconds.
PLAN_US, ABOVE_LAUNCH_US = 30.0, 5.0

#: Calls between two synchronisations: far fewer than the driver's queue takes before it blocks.
CALLS, ROUNDS = 20, 40


def microseconds(call: Callable[[], object], device: torch.device) -> float:
    """The host time of one call, the median of many rounds."""
    found = []
    for _ in range(ROUNDS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return statistics.median(found)


def metadata(batch: int, lengths: torch.device, pages: torch.device) -> tuple[Tensor, PagedKV]:
    """One query and a few pages for each request; lengths and page ids where they are wanted."""

    def ints(values: range | list[int], device: torch.device) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    count = batch * PAGES_OF_EACH
    indptr = ints(range(0, count + 1, PAGES_OF_EACH), lengths)
    kv = PagedKV(indptr, ints(range(count), pages), ints([PAGE] * batch, lengths))
    return ints(range(batch + 1), lengths), kv


def bare_launch(attn: BatchAttention, call: Callable[[], object]) -> Callable[[], object]:
    """The launch that a call ends in, with the values that it had then."""
    call()
    run: ShareRun = attn._plan._run  # noqa: SLF001
    real, seen = run.launch, list[tuple[Any, ...]]()

    def launch(*values: Any) -> None:
        seen.append(values)
        real(*values)

    run.launch = launch
    call()
    run.launch = real
    return lambda: real(*seen[0])


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """plan() by where its metadata lie, and run() by what K and V are given as."""
    host, on_gpu = torch.device("cpu"), device.type == "cuda"
    for batch in BATCHES:
        attn = BatchAttention(
            *HEADS,
            HEAD_DIM,
            DTYPE,
            Paged(PAGE),
            variant=Variant(causal=True),
            device=device,
            backend="fa2_cuda" if on_gpu else "reference",
        )
        for where, lengths, pages in (
            ("metadata on the device", device, device),
            ("lengths on the host", host, device),
            ("all on the host", host, host),
        ):
            qo_indptr, kv = metadata(batch, lengths, pages)
            us = microseconds(lambda: attn.plan(qo_indptr, kv, max_qo_len=1), device)  # noqa: B023
            budget = None if pages != device else us / PLAN_US
            name = f"plan, B{batch}, {where}"
            yield here.row(SUITE, name, "host time", us, "us", share_of_ceiling=budget)
        q = torch.zeros(batch, HEADS[0], HEAD_DIM, dtype=DTYPE, device=device)
        shape = (batch * PAGES_OF_EACH, 2, PAGE, HEADS[1], HEAD_DIM)
        cache = torch.zeros(shape, dtype=DTYPE, device=device)
        out = torch.empty_like(q)
        for name, given in (("(K, V)", (cache[:, 0], cache[:, 1])), ("one cache", cache)):
            call = lambda given=given: attn.run(q, given, out=out)  # noqa: B023, E731
            us = microseconds(call, device)
            yield here.row(SUITE, f"run, B{batch}, {name}", "host time", us, "us")
            if on_gpu:
                above = us - microseconds(bare_launch(attn, call), device)
                share = above / ABOVE_LAUNCH_US
                case = f"run, B{batch}, {name}"
                metric = "above its launch"
                yield here.row(SUITE, case, metric, above, "us", share_of_ceiling=share)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    script.run(every_row, __doc__, out=Path("benchmarks/results"), arguments=arguments)


if __name__ == "__main__":
    main()
