"""What the kernels of rope share: steps through heads, settings, addresses, frequencies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from attnhub import Rope
from attnhub.errors import InvalidArgument
from attnhub.plugin import describe
from attnhub_triton_misc.frequencies import KnownFrequencies
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
