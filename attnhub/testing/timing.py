"""The benchmark protocol: how every published number is timed.

Device work is timed by device events around each launch, host work by a monotonic clock. The
figure is the median over many launches after a warm-up. Caches are kept out of it by rotating over
input sets larger than the L2, or by reading a large buffer before each launch: a buffer that is
*written* would leave dirty lines, whose write-back would be timed with the launch.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

import torch

from attnhub.errors import InvalidArgument

Launch = Callable[[], object]
InputSets = Sequence[tuple[object, ...]]

#: What to read before each launch on CUDA: several times the largest L2, and long enough to hide
#: the host time of the launch that follows.
CLEAR_BYTES = 256 << 20

_GRAPH_LAUNCHES = 20
_MAX_REPEATS = 10_000
_now_ns = time.perf_counter_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one launch takes, in microseconds, over ``repeats`` timed launches (or replays)."""

    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    method: str

    def rate(self, amount: float) -> float:
        """Return ``amount`` per second: bytes give B/s, operations give FLOP/s."""
        return amount / (self.median_us * 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimings:
    """Timings of several functions that do the same, measured interleaved in one run.

    The first name is the subject, the others are its peers.
    """

    timings: dict[str, Timing]

    @property
    def subject(self) -> str:
        """The name that the others are compared with."""
        return next(iter(self.timings))

    def speedups(self) -> dict[str, float]:
        """Return how many times as fast as each peer the subject is (2: half the time)."""
        ours = self.timings[self.subject].median_us
        return {
            name: timing.median_us / ours
            for name, timing in self.timings.items()
            if name != self.subject
        }


class _Timer(Protocol):
    method: str

    def synchronize(self) -> None: ...

    def sample(self, launches: Sequence[Launch], clear: Launch) -> list[float]:
        """Return the microseconds of each launch, with ``clear`` run untimed before it."""


class _HostTimer:
    method = "host clock"

    def synchronize(self) -> None:
        pass

    def sample(self, launches: Sequence[Launch], clear: Launch) -> list[float]:
        samples = []
        for launch in launches:
            clear()
            start = _now_ns()
            launch()
            samples.append((_now_ns() - start) / 1000)
        return samples


class _EventTimer:
    method = "device events"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def sample(self, launches: Sequence[Launch], clear: Launch) -> list[float]:
        pairs = []
        with torch.cuda.device(self.device):
            for launch in launches:
                clear()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                launch()
                end.record()
                pairs.append((start, end))
        self.synchronize()
        return [start.elapsed_time(end) * 1000 for start, end in pairs]


class _GraphTimer(_EventTimer):
    """Times replays of one graph that holds many launches, so that launch gaps shrink."""

    def __init__(self, device: torch.device, launches: Sequence[Launch]) -> None:
        super().__init__(device)
        # Every input set equally often, so that a replay is a fair mean over them.
        self.count = len(launches) * -(-_GRAPH_LAUNCHES // len(launches))
        self.method = f"device events round a graph of {self.count} launches"
        with torch.cuda.device(device):
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                for launch in islice(cycle(launches), self.count):
                    launch()

    def sample(self, launches: Sequence[Launch], clear: Launch) -> list[float]:
        replays = super().sample([self._graph.replay] * len(launches), clear)
        return [replay / self.count for replay in replays]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """One function made ready: warmed up, captured if asked, with its number of repeats."""

    launches: list[Launch]
    timer: _Timer
    clear: Launch
    repeats: int

    def sample(self) -> list[float]:
        return self.timer.sample(list(islice(cycle(self.launches), self.repeats)), self.clear)


def measure(
    fn: Callable[..., object],
    *,
    device: torch.device | str,
    inputs_rotation: InputSets | None = None,
    warmup_ms: float = 25.0,
    repeat_ms: float = 100.0,
    min_repeats: int = 10,
    clear_l2_bytes: int = 0,
    graph: bool = False,
) -> Timing:
    """Return the time of one call of ``fn``.

    Args:
        fn: Called without arguments, or with each tuple of ``inputs_rotation`` in turn.
        device: Where it works. CUDA is timed by device events, the CPU by a host clock.
        inputs_rotation: Argument sets that together exceed the L2, for a cold-cache figure.
        warmup_ms: Run untimed for this long first (at least twice): compiles, loads, clocks.
        repeat_ms: Timed launches fill about this long.
        min_repeats: But there are at least this many.
        clear_l2_bytes: Read a buffer this large before each launch, untimed.
        graph: Capture the launches (CUDA) and time replays: for kernels as short as their launch.

    Example::

        kv_sets = [(q, kv) for kv in caches]           # together larger than the L2
        timing = measure(attn.run, device="cuda", inputs_rotation=kv_sets)
        print(timing.rate(kv.nbytes) / 1e9, "GB/s")
    """
    subject = _prepare(
        _launches(fn, inputs_rotation),
        torch.device(device),
        budget_ms=(warmup_ms, repeat_ms),
        min_repeats=min_repeats,
        clear_l2_bytes=clear_l2_bytes,
        graph=graph,
    )
    return _summary(subject.sample(), subject.timer.method)


def compare_peers(
    peers: Mapping[str, Callable[..., object]],
    *,
    device: torch.device | str,
    inputs_rotation: InputSets | None = None,
    rounds: int = 5,
    warmup_ms: float = 25.0,
    repeat_ms: float = 100.0,
    clear_l2_bytes: int = 0,
    graph: bool = False,
) -> PeerTimings:
    """Return timings of functions that do the same, measured in turn so that drift hits all alike.

    Each function is warmed up once; then every round times each of them, starting with another one
    each time. The arguments are those of :func:`measure`, with ``repeat_ms`` spent on each function
    over all ``rounds``. The first of ``peers`` (name to function) is the subject.

    Example::

        result = compare_peers({"attnhub": ours, "sdpa": theirs}, device="cuda")
        print(result.speedups())                       # {"sdpa": 1.42}
    """
    if not peers or rounds < 1:
        raise InvalidArgument(f"{len(peers)} functions, rounds={rounds}: needs at least one each")
    subjects = {
        name: _prepare(
            _launches(fn, inputs_rotation),
            torch.device(device),
            budget_ms=(warmup_ms, repeat_ms / rounds),
            min_repeats=3,
            clear_l2_bytes=clear_l2_bytes,
            graph=graph,
        )
        for name, fn in peers.items()
    }
    names = list(subjects)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name] += subjects[name].sample()
    timings = {name: _summary(samples[name], subjects[name].timer.method) for name in names}
    return PeerTimings(timings=timings)


def host_overhead(fn: Launch, calls: int = 5000, repeats: int = 7) -> float:
    """Return the microseconds that one call of ``fn`` takes on the host, best of ``repeats``.

    The best, because everything else on the machine can only add time. Work that ``fn`` launches
    is not waited for; launches beyond the depth of the driver's queue (about a thousand) would
    block, so give ``calls=500`` for a function that launches.
    """
    if calls < 1 or repeats < 1:
        raise InvalidArgument(f"calls={calls}, repeats={repeats}: needs at least one of each")
    fn()
    timer = timeit.Timer(fn, setup=_drain, timer=_now_ns)
    return min(timer.repeat(repeats, calls)) / calls / 1000


def copy_ceiling(device: torch.device | str, *, num_bytes: int | None = None) -> float:
    """Return the GB/s, read plus written, of a large copy on ``device``.

    The bandwidth that a kernel is judged by; measure it in the run whose rows quote it.
    ``num_bytes`` is the size of the source: default 1 GiB on CUDA, 64 MiB on the CPU.
    """
    device = torch.device(device)
    if num_bytes is None:
        num_bytes = 1 << 30 if device.type == "cuda" else 64 << 20
    # Random bits: constant data can move faster than real data.
    source = torch.empty(num_bytes // 4, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), device=device)
    return timing.rate(2 * source.nbytes) / 1e9


def matmul_ceiling(device: torch.device | str) -> float:
    """Return the TFLOP/s of a large square matrix product on ``device``.

    bfloat16 on CUDA and float32 on a CPU, so an 8-bit kernel may pass it.
    """
    device = torch.device(device)
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(n, n, device=device).to(dtype)
    out = torch.empty_like(a)
    timing = measure(lambda: torch.mm(a, a, out=out), device=device)
    return timing.rate(2.0 * n**3) / 1e12


def _drain() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _launches(fn: Callable[..., object], inputs: InputSets | None) -> list[Launch]:
    if inputs is None:
        return [fn]
    if not inputs:
        raise InvalidArgument("inputs_rotation is empty: give one tuple of arguments or more")

    def bound(arguments: tuple[object, ...]) -> Launch:
        return lambda: fn(*arguments)

    return [bound(arguments) for arguments in inputs]


def _prepare(
    launches: list[Launch],
    device: torch.device,
    *,
    budget_ms: tuple[float, float],
    min_repeats: int,
    clear_l2_bytes: int,
    graph: bool,
) -> _Subject:
    """Warm up, capture if asked, and settle how often to repeat within ``(warm-up, timed)`` ms."""
    if device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"device={device}: timing is defined for cpu and cuda")
    if graph and (device.type != "cuda" or clear_l2_bytes):
        raise InvalidArgument(
            f"graph=True, device={device}, clear_l2_bytes={clear_l2_bytes}: graphs exist on CUDA "
            "only, and clearing reaches only the first of the launches in one; use inputs_rotation"
        )
    timer: _Timer = _EventTimer(device) if device.type == "cuda" else _HostTimer()
    _warm_up(launches, timer, budget_ms[0])
    if graph:
        timer = _GraphTimer(device, launches)
    clear = _l2_reader(device, clear_l2_bytes)
    timer.sample(launches[:1], clear)  # the first event or replay pays for set-up
    cost_us = max(sorted(timer.sample(launches[:1] * 3, clear))[1], 1e-3)
    if isinstance(timer, _GraphTimer):
        cost_us *= timer.count
    repeats = max(min(int(budget_ms[1] * 1000 / cost_us), _MAX_REPEATS), min_repeats, 1)
    return _Subject(launches=launches, timer=timer, clear=clear, repeats=repeats)


def _warm_up(launches: list[Launch], timer: _Timer, warmup_ms: float) -> None:
    start = _now_ns()
    for count, launch in enumerate(cycle(launches), start=1):
        launch()
        # Waiting each time keeps the queue short, so that the clock sees the work.
        timer.synchronize()
        if count >= max(2, len(launches)) and _now_ns() - start >= warmup_ms * 1e6:
            return


def _l2_reader(device: torch.device, num_bytes: int) -> Launch:
    if not num_bytes:
        return lambda: None
    buffer = torch.ones(max(num_bytes // 4, 1), dtype=torch.float32, device=device)
    return buffer.sum


def _summary(samples: list[float], method: str) -> Timing:
    ordered = sorted(samples)
    return Timing(
        median_us=_percentile(ordered, 0.5),
        p10_us=_percentile(ordered, 0.1),
        p90_us=_percentile(ordered, 0.9),
        repeats=len(ordered),
        method=method,
    )


def _percentile(ordered: list[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
