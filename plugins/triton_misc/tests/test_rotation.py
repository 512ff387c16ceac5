"""What the kernels of rope share: steps through heads, settings, addresses, frequencies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from attnhub import Rope
from attnhub.errors import InvalidArgument
from attnhub.plugin import describe
from attnhub_triton_misc.frequencies import Frequencies, KnownFrequencies
from attnhub_triton_misc.launch import launch
from attnhub_triton_misc.rotation import Heads, head_rows
from attnhub_triton_misc.settings import FULL, heads_of_token


@pytest.mark.parametrize("counts", [(1, 1), (32, 8), (9, 3, 3), (128, 1)], ids=str)
def test_every_setting_is_legal_and_has_work_for_each_program(counts: tuple[int, ...]) -> None:
    for dim in (1, 2, 40, 64, 80, 128, 192, 256, 1000, 4096, 16384):
        for tokens in (None, 0, 1, 128, FULL, 1 << 20):
            tile = heads_of_token(counts, dim, tokens)
            assert tile.is_legal()
            steps = sum(-(-count // tile.heads) for count in counts)
            spread = min(steps, FULL // (tokens or 1))
            assert tile.programs == max(spread, 1)


@triton.jit
def _addresses(x, token, out):
    head = tl.arange(0, 4)
    tl.store(out + head, head_rows(x, token.to(tl.int64), head).to(tl.int64))


@pytest.mark.parametrize(
    ("token_stride", "head_stride"),
    [
        pytest.param(1 << 30, 128, id="tokens far apart"),
        pytest.param(128, 1 << 30, id="heads far apart"),
    ],
)
def test_offsets_pass_int32(token_stride: int, head_stride: int, device: torch.device) -> None:
    x = torch.zeros(1, dtype=torch.float16, device=device)
    found = torch.zeros(4, dtype=torch.int64, device=device)
    launch(_addresses, (1,), device, Heads(x, 4, token_stride, head_stride), 3, found)
    offsets = [2 * (3 * token_stride + head * head_stride) for head in range(4)]
    assert (found - x.data_ptr()).tolist() == offsets


def test_plans_of_one_rotation_share_its_frequencies() -> None:
    known, rope, cpu = KnownFrequencies(), Rope(theta=100.0), describe("cpu")
    first = known.of(rope, 8, cpu)
    assert first.table().tolist() == pytest.approx([100.0 ** (-i / 4) for i in range(4)])
    assert first.factor == 1.0
    assert known.of(Rope(theta=100.0), 8, cpu) is first
    assert known.of(rope, 4, cpu) is not first
    assert known.of(replace(rope, theta=10.0), 8, cpu) is not first


def test_a_capture_is_no_time_for_a_new_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy would become a part of the graph, and the memory hold nothing before a replay."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(InvalidArgument, match=r"is new to .*; call apply_rope with it once before"):
        KnownFrequencies().of(Rope(), 8, describe("h200"))


class _Copy:
    """An event, as far as frequencies ask one."""

    def __init__(self, *, arrived: bool) -> None:
        self.arrived = arrived
        self.waiting: list[Any] = []

    def query(self) -> bool:
        return self.arrived

    def wait(self, stream: Any) -> None:
        self.waiting.append(stream)


def _sent(copy: _Copy) -> Any:
    frequencies: Any = Frequencies(Rope(), 8, torch.device("cpu"))
    frequencies._sent = copy
    return frequencies


def test_two_threads_may_find_at_once_that_the_copy_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is held up between two looks, until the other has taken note of it."""
    first_is_in, second_is_done = Event(), Event()

    def is_capturing() -> bool:
        if not first_is_in.is_set():
            first_is_in.set()
            assert second_is_done.wait(60)
        return False

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", is_capturing)
    frequencies = _sent(_Copy(arrived=True))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(frequencies.table)
        assert first_is_in.wait(60)
        second = threads.submit(frequencies.table).result(60)
        second_is_done.set()
        assert first.result(60) is second
    assert frequencies._sent is None


def test_a_stream_waits_for_a_copy_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "mine")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    copy = _Copy(arrived=False)
    frequencies = _sent(copy)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: frequencies.table(), range(8)))
    assert copy.waiting == ["mine"] * 8
    assert all(table is found[0] for table in found)
    assert frequencies._sent is copy


def test_the_memory_waits_for_each_stream_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the allocator gives it away while another stream than its own still reads."""
    kept: list[int] = []
    now = SimpleNamespace(stream=1)
    module = "attnhub_triton_misc.frequencies"
    monkeypatch.setattr(f"{module}.stream", lambda index: now.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now.stream)
    frequencies: Any = Frequencies(Rope(), 8, torch.device("cpu"))
    frequencies._table = SimpleNamespace(
        is_cuda=True, device="cuda:0", get_device=lambda: 0, record_stream=kept.append
    )
    for now.stream in (1, 2, 2, 1, 3):
        assert frequencies.table() is frequencies._table
    assert kept == [1, 2, 3]
