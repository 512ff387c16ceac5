"""silu_and_mul: the share of a copy's bandwidth, beside PyTorch; microseconds where rows are few.

    python examples/third_party_cuda_plugin/benchmarks/silu_and_mul.py [--device cuda:0] [--out DIR]
        [--commit HASH]

Peers in the same run: the reference backend, and the two operations of PyTorch that a model without
AttnHub would call, which round the gate to 16 bits in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import attnhub
from attnhub.activation import silu_and_mul
from attnhub.testing import results, script
from attnhub.testing.generators import seeded
from attnhub.testing.timing import CLEAR_BYTES, compare_peers, copy_ceiling, host_overhead

SUITE = "swiglu"
Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rows of bfloat16, ``[rows, 2 * hidden]``."""

    rows: int
    hidden: int = 14336
    #: Beyond the L2: judged by its bandwidth, after the L2 was emptied. Others are judged by their
    #: time in a CUDA graph, with the input in the L2, as behind the product that made it.
    is_large: bool = True

    @property
    def num_bytes(self) -> int:
        """The gate and up are read, their product is written."""
        return 3 * 2 * self.rows * self.hidden

    def __str__(self) -> str:
        return f"{self.rows}x{self.hidden} bfloat16"


GPU_SIZES = (
    Size(rows=8192),
    Size(rows=8192, hidden=28672),
    Size(rows=1, is_large=False),
    Size(rows=128, is_large=False),
)
CPU_SIZES = (Size(rows=64),)


def calls(size: Size, device: torch.device) -> dict[str, Call]:
    """Who -> one call on the same input; the first is the subject."""
    shape = (size.rows, 2 * size.hidden)
    x = torch.randn(shape, generator=seeded(0, device), device=device, dtype=torch.bfloat16)
    out = x.new_empty(size.rows, size.hidden)
    gate, up = x.chunk(2, dim=-1)

    def by(backend: str) -> Call:
        def run() -> None:
            with attnhub.use(backend):
                silu_and_mul(x, out=out)

        return run

    names = ("reference",) if device.type == "cpu" else ("swiglu", "reference")
    plain = {"torch": lambda: torch.mul(torch.nn.functional.silu(gate), up, out=out)}
    return {name: by(name) for name in names} | plain


def measure(size: Size, here: results.Environment, device: torch.device) -> list[results.Row]:
    """The time, and the bandwidth where it is large."""
    subjects = calls(size, device)
    subject = next(iter(subjects))
    timings = compare_peers(
        subjects,
        device=device,
        graph=not size.is_large,
        clear_l2_bytes=CLEAR_BYTES if size.is_large and device.type == "cuda" else 0,
    ).timings
    peers = {name: timing.median_us for name, timing in timings.items()}
    rows = [here.row(SUITE, str(size), "time", peers.pop(subject), "us", peers=peers)]
    if not size.is_large:
        host = host_overhead(subjects[subject], calls=500)
        return [*rows, here.row(SUITE, str(size), "host time", host, "us")]
    rates = {name: timing.rate(size.num_bytes) / 1e9 for name, timing in timings.items()}
    ours = rates.pop(subject)
    share = ours / copy_ceiling(device)
    return [
        *rows,
        here.row(SUITE, str(size), "bandwidth", ours, "GB/s", share_of_ceiling=share, peers=rates),
    ]


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """Those of each size."""
    for size in GPU_SIZES if device.type == "cuda" else CPU_SIZES:
        yield from measure(size, here, device)


if __name__ == "__main__":
    script.run(every_row, __doc__)
