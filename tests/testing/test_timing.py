from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing import timing
from attnhub.testing.timing import (
    Timing,
    compare_peers,
    copy_ceiling,
    host_overhead,
    matmul_ceiling,
    measure,
)


class FakeClock:
    """Time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[object] = []

    def __call__(self) -> int:
        return self.now

    def work(self, microseconds: float, name: object = None) -> None:
        self.now += int(microseconds * 1000)
        self.log.append(name)

    def worker(self, *durations: float, name: object = None) -> Callable[..., None]:
        """Return a function that takes each duration in turn."""
        left = iter(durations * 100_000)
        return lambda *arguments: self.work(next(left), arguments or name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(timing, "_now_ns", fake)
    return fake


@pytest.fixture
def fake_cuda(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Stand in for events and graphs, on the time of ``clock``."""

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) / 1e6

    class Graph:
        def __init__(self) -> None:
            self.cost = 0

        def replay(self) -> None:
            clock.work(self.cost / 1000, "replay")

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        start = clock.now
        yield
        graph.cost = clock.now - start
        clock.log.append("captured")

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        assert which == torch.device("cuda:1")
        yield

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return clock


def test_the_figure_is_the_median_and_repeats_fill_the_time(clock: FakeClock) -> None:
    result = measure(clock.worker(50.0), device="cpu")
    assert (result.median_us, result.p10_us, result.p90_us) == (50.0, 50.0, 50.0)
    assert result.repeats == 2000  # 100 ms of 50 us
    assert result.method == "host clock"
    assert len(clock.log) == 500 + 4 + 2000  # 25 ms of warm-up, four to settle the repeats


def test_percentiles_show_the_spread(clock: FakeClock) -> None:
    result = measure(
        clock.worker(*[10.0, 20.0, 30.0, 40.0, 50.0]), device="cpu", warmup_ms=0, repeat_ms=100
    )
    assert result.median_us == pytest.approx(30.0)
    assert result.p10_us == 10.0
    assert result.p90_us == 50.0


def test_an_outlier_does_not_move_the_median(clock: FakeClock) -> None:
    result = measure(clock.worker(*[10.0] * 30, 9000.0), device="cpu", repeat_ms=5)
    assert result.median_us == 10.0


def test_slow_functions_still_repeat(clock: FakeClock) -> None:
    result = measure(clock.worker(1e6), device="cpu", min_repeats=4)
    assert result.repeats == 4
    assert len(clock.log) == 2 + 4 + 4  # the warm-up runs twice whatever it takes


def test_inputs_rotate(clock: FakeClock) -> None:
    sets = [(1,), (2,), (3,)]
    measure(clock.worker(5e3), device="cpu", inputs_rotation=sets, min_repeats=6, repeat_ms=1)
    assert clock.log[-6:] == [(1,), (2,), (3,)] * 2


def test_clearing_the_cache_runs_before_each_launch_and_is_not_timed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_l2_reader", lambda device, size: clock.worker(700.0, name=size))
    result = measure(
        clock.worker(50.0, name="fn"), device="cpu", repeat_ms=0, min_repeats=3, clear_l2_bytes=64
    )
    assert result.median_us == 50.0
    assert clock.log[-6:] == [64, "fn"] * 3


def test_device_events_time_only_the_launch(
    fake_cuda: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_l2_reader", lambda device, size: fake_cuda.worker(700.0))
    result = measure(fake_cuda.worker(8.0), device="cuda:1", clear_l2_bytes=64, repeat_ms=1)
    assert result.median_us == pytest.approx(8.0)
    assert result.repeats == 125
    assert result.method == "device events"


def test_a_graph_holds_many_launches_and_reports_one(fake_cuda: FakeClock) -> None:
    sets = [(1,), (2,), (3,)]
    result = measure(
        fake_cuda.worker(2.0), device="cuda:1", inputs_rotation=sets, repeat_ms=1, graph=True
    )
    captured = fake_cuda.log.index("captured")
    assert fake_cuda.log[captured - 21 : captured] == sets * 7
    assert set(fake_cuda.log[captured + 1 :]) == {"replay"}
    assert result.median_us == pytest.approx(2.0)
    assert result.repeats == 23  # 1 ms of 21 launches of 2 us
    assert "21 launches" in result.method


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "meta"}, "cpu and cuda"),
        ({"device": "cpu", "graph": True}, "graphs exist on CUDA"),
        ({"device": "cuda", "graph": True, "clear_l2_bytes": 1}, "inputs_rotation"),
        ({"device": "cpu", "inputs_rotation": []}, "empty"),
    ],
    ids=["no clock for it", "graph on the CPU", "graph and clearing", "no inputs"],
)
def test_what_cannot_be_timed_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        measure(lambda: None, **arguments)


def test_rate_counts_per_second(clock: FakeClock) -> None:
    result = measure(clock.worker(200.0), device="cpu")
    assert result.rate(1e6) == pytest.approx(5e9)


def test_peers_take_turns_and_are_compared_with_the_first(clock: FakeClock) -> None:
    peers = {
        name: clock.worker(cost, name=name)
        for name, cost in (("ours", 1000.0), ("slow", 2500.0), ("fast", 500.0))
    }
    result = compare_peers(peers, device="cpu", rounds=3, warmup_ms=0, repeat_ms=9)
    assert result.subject == "ours"
    assert result.speedups() == {"slow": 2.5, "fast": 0.5}
    counts = {name: one.repeats // 3 for name, one in result.timings.items()}
    assert counts == {"ours": 3, "slow": 3, "fast": 6}
    turns = ["ours", "slow", "fast", "slow", "fast", "ours", "fast", "ours", "slow"]
    expected = [name for name in turns for _ in range(counts[name])]
    assert clock.log[-len(expected) :] == expected


def test_drift_hits_all_peers_alike(clock: FakeClock) -> None:
    # The machine slows down by a thousandth with every call, whoever makes it.
    def drifting() -> None:
        clock.work(100.0 * 1.001 ** len(clock.log))

    result = compare_peers(
        {"a": drifting, "b": drifting}, device="cpu", rounds=20, warmup_ms=0, repeat_ms=10
    )
    assert result.speedups()["b"] == pytest.approx(1.0, abs=0.02)


def test_peers_need_somebody() -> None:
    with pytest.raises(InvalidArgument, match="0 functions"):
        compare_peers({}, device="cpu")


def test_host_overhead_is_the_best_repeat(clock: FakeClock) -> None:
    costs = [5.0] + [3.0] * 10 + [2.0] * 10 + [4.0] * 10
    assert host_overhead(clock.worker(*costs), calls=10, repeats=3) == pytest.approx(2.0)
    assert len(clock.log) == 31
    with pytest.raises(InvalidArgument, match="at least one"):
        host_overhead(lambda: None, calls=0)


def test_host_overhead_is_that_of_the_real_clock() -> None:
    """What is expected of any machine: that the calls fit between two looks at the clock."""
    calls = []
    start = time.perf_counter_ns()
    best = host_overhead(lambda: calls.append(None), calls=1000, repeats=3)
    passed = (time.perf_counter_ns() - start) / 1000
    assert len(calls) == 1 + 3 * 1000
    assert 0.0 < 3 * 1000 * best <= passed


def test_the_copy_ceiling_of_a_cpu_is_plausible() -> None:
    assert copy_ceiling("cpu", num_bytes=16 << 20) > 0


def test_the_matmul_ceiling_counts_two_operations_a_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Timing(median_us=1000.0, p10_us=0, p90_us=0, repeats=1, method="fake")
    monkeypatch.setattr(timing, "measure", lambda fn, device: (fn(), known)[1])
    assert matmul_ceiling("cpu") == pytest.approx(2 * 1024**3 / 1e-3 / 1e12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_timed_by_events_and_by_graph_replay() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    out = torch.empty_like(x)
    plain = measure(lambda: torch.add(x, x, out=out), device="cuda", repeat_ms=20)
    replay = measure(lambda: torch.add(x, x, out=out), device="cuda", repeat_ms=20, graph=True)
    cold = measure(
        lambda: torch.add(x, x, out=out), device="cuda", repeat_ms=20, clear_l2_bytes=256 << 20
    )
    assert torch.equal(out, x + x)
    for found in (plain, replay, cold):
        assert 0 < found.p10_us <= found.median_us <= found.p90_us
    assert plain.method == cold.method == "device events"
    assert replay.method.startswith("device events round a graph of ")
    assert copy_ceiling("cuda") > 0
