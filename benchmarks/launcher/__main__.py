"""What a launch costs the host, beside other ways to launch; and compiling kernels at once.

    python -m benchmarks.launcher [--out benchmarks/results] [--commit HASH]

Needs a GPU. Prints a table and adds rows to the result file of the suite "launcher". A candidate
that is not installed is left out, with the reason.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from attnhub.jit import Cache, compile_kernels, jobs
from attnhub.kernels import merge
from attnhub.plugin import arch
from attnhub.testing import report, results
from attnhub.testing.results import Environment, Row
from benchmarks.launcher import candidates
from benchmarks.launcher.candidates import CANDIDATES, DEVICE, Bench, Call, Missing

SUITE = "launcher"
ROOT = Path(__file__).resolve().parents[2]
FLOOR = next(iter(CANDIDATES))

#: Of a launch above the bare call.
LAUNCH_BUDGET_US = 3.0

#: Calls between two synchronisations: far fewer than the driver's queue takes before it blocks.
BATCH = 50
ROUNDS = 200


def launches(here: Environment) -> Iterator[Row]:
    """The host time of a launch, of every candidate in the same minute."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = candidates.spec(arch(f"cuda:{DEVICE}"))
        [cubin] = compile_kernels([kernel], cache=Cache(folder))
    bench, calls = Bench(cubin), dict[str, Call]()
    for name, make in CANDIDATES.items():
        try:
            calls[name] = make(bench)
        except Missing as why:
            print(f"skipped {name}: {why}")
    times = {name: statistics.median(found) for name, found in _samples(calls).items()}
    for name, found in times.items():
        print(f"{name:44} {found:6.2f} us {found - times[FLOOR]:+6.2f}")
    ours = times.pop("attnhub")
    case = "12 parameters"
    yield here.row(SUITE, case, "host time of a launch", ours, "us", peers=times)
    above = ours - times[FLOOR]
    share = above / LAUNCH_BUDGET_US
    yield here.row(SUITE, case, "above the driver's call", above, "us", share_of_ceiling=share)


def _samples(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Microseconds of one call, many times each; in turn, so that drift hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(BATCH):
                call()
            samples[name].append((time.perf_counter_ns() - start) / BATCH / 1e3)
    return samples


def compilations(here: Environment) -> Iterator[Row]:
    """Twelve kernels from nothing, by one thread and by several."""
    specs = [
        spec
        for dtype in merge.ELEMENTS
        for head_dim in (64, 128)
        for spec in merge.specs("sm_90a", dtype, head_dim)
    ]
    _compile(specs[:1], 1)  # loads the compiler and the template engine
    for count in (1, 4, 16):
        most = jobs.limit(count)
        seconds = _compile(specs, count)
        print(f"{len(specs)} kernels, {count} jobs ({most} by cores and memory): {seconds:.2f} s")
        case = f"{len(specs)} merge kernels, jobs={count}"
        yield here.row(SUITE, case, "wall time", seconds, "s")


def _compile(specs: list[candidates.KernelSpec], count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        compile_kernels(specs, cache=Cache(folder), jobs=count, prebuilt=False)
        return time.perf_counter() - start


def main() -> None:
    """Measure all, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--commit", default="", help="where the tree came without its history")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.launcher needs a GPU, and torch finds none here")
    here = results.environment(f"cuda:{DEVICE}", commit=options.commit)
    rows = [*launches(here), *compilations(here)]
    print(report.text(rows))
    for file in results.write(rows, options.out):
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
