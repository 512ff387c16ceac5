"""Merging attention states: share of the copy bandwidth, or microseconds where there is too little.

Beside ours, in the same run: PyTorch (the reference backend) and, if it is installed, FlashInfer,
whose LSEs are logarithms to base 2 but which moves the same bytes.

    python plugins/fa2_cuda/benchmarks/merge.py [--device cuda:0] [--out benchmarks/results]
        [--commit HASH]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import attnhub
from attnhub import cascade
from attnhub.testing import results, script
from attnhub.testing.generators import seeded
from attnhub.testing.timing import CLEAR_BYTES, compare_peers, copy_ceiling, host_overhead

SUITE = "merge"
Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """``[tokens, states, heads, dim]`` in bfloat16."""

    tokens: int
    states: int
    heads: int = 32
    dim: int = 128
    #: Beyond the L2: judged by its bandwidth, after the L2 was emptied. Others are judged by their
    #: time in a CUDA graph, inputs in the L2, as behind the attention that made them.
    is_large: bool = True

    @property
    def num_bytes(self) -> int:
        """Read and written."""
        return (self.states + 1) * self.tokens * self.heads * (2 * self.dim + 4)

    def __str__(self) -> str:
        return f"{self.tokens}x{self.states}x{self.heads}x{self.dim} bfloat16"


GPU_SIZES = (
    Size(tokens=65536, states=2),
    Size(tokens=16384, states=8),
    Size(tokens=2048, states=64),
    Size(tokens=128, states=2, is_large=False),
    Size(tokens=64, states=8, is_large=False),
    Size(tokens=16, states=64, is_large=False),
    Size(tokens=1, states=132, is_large=False),
)
CPU_SIZES = (Size(tokens=16, states=2), Size(tokens=4, states=8))


def calls(size: Size, device: torch.device) -> Mapping[str, Mapping[str, Call]]:
    """Op -> who -> one call on the same inputs; the first is the subject."""
    shape = (size.tokens, size.states, size.heads, size.dim)
    o = torch.randn(shape, generator=seeded(0, device), device=device, dtype=torch.bfloat16)
    lse = torch.randn(shape[:-1], generator=seeded(1, device), device=device)
    out = torch.empty_like(o[:, 0]), torch.empty_like(lse[:, 0])
    found = {"merge_states": _hub(lambda: cascade.merge_states(o, lse, out=out), device)}
    theirs: dict[str, tuple[Tensor, ...]] = {"merge_states": (o, lse)}
    if size.states == 2:
        a, b = ((o[:, i].contiguous(), lse[:, i].contiguous()) for i in range(2))
        found["merge_state"] = _hub(lambda: cascade.merge_state(*a, *b, out=out), device)
        theirs["merge_state"] = (*a, *b)
    for op, arguments in theirs.items():
        if (peer := _flashinfer(op, arguments)) is not None:
            found[op]["flashinfer"] = peer
    return found


def _hub(call: Call, device: torch.device) -> dict[str, Call]:
    """The call by this plugin and by PyTorch."""

    def by(backend: str) -> Call:
        def run() -> None:
            with attnhub.use(backend):
                call()

        return run

    reference = {"reference": by("reference")}
    return reference if device.type == "cpu" else {"fa2_cuda": by("fa2_cuda"), **reference}


def _flashinfer(op: str, arguments: tuple[Tensor, ...]) -> Call | None:
    if arguments[0].device.type == "cpu":
        return None
    try:
        import flashinfer
    except ImportError:
        return None
    function = getattr(flashinfer, op)
    return lambda: function(*arguments)


def measure(size: Size, here: results.Environment, device: torch.device) -> list[results.Row]:
    """Time of each op, and its bandwidth where it is large."""
    rows = []
    for op, subjects in calls(size, device).items():
        case, subject = f"{op} {size}", next(iter(subjects))
        timed = compare_peers(
            subjects,
            device=device,
            graph=not size.is_large,
            clear_l2_bytes=CLEAR_BYTES if size.is_large and device.type == "cuda" else 0,
        ).timings
        peers = {name: timing.median_us for name, timing in timed.items()}
        us = peers.pop(subject)
        rows.append(here.row(SUITE, case, "time", us, "us", peers=peers))
        if size.is_large:
            rate = {name: timing.rate(size.num_bytes) / 1e9 for name, timing in timed.items()}
            ours = rate.pop(subject)
            share = ours / copy_ceiling(device)
            rows.append(
                here.row(SUITE, case, "bandwidth", ours, "GB/s", share_of_ceiling=share, peers=rate)
            )
        else:
            host = host_overhead(subjects[subject], calls=500)
            rows.append(here.row(SUITE, case, "host time", host, "us"))
    return rows


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """Those of each size."""
    for size in GPU_SIZES if device.type == "cuda" else CPU_SIZES:
        yield from measure(size, here, device)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    script.run(every_row, __doc__, out=Path("benchmarks/results"), arguments=arguments)


if __name__ == "__main__":
    main()
