"""The table of cosines and sines that layers share: never an old one, and no longer than they."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as theirs

from attnhub.integrations.transformers import rotation
from attnhub.integrations.transformers.rotation import apply_rotary_pos_emb
from tests.integrations.capturing import capture

DIM = 8
Q, K = torch.linspace(-1.0, 1.0, 2 * 2 * 3 * 4 * DIM).view(2, 2, 3, 4, DIM).unbind()


def angles(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    x = torch.arange(4.0)[None, :, None] * torch.linspace(scale, 0.1, DIM // 2).repeat(2)
    return x.cos(), x.sin()


def assert_turned(cos: Tensor, sin: Tensor, run: Any = apply_rotary_pos_emb) -> None:
    for actual, expected in zip(run(Q, K, cos, sin), theirs(Q, K, cos, sin), strict=True):
        torch.testing.assert_close(actual, expected)


def test_layers_of_one_forward_share_a_table() -> None:
    cos, sin = angles()
    assert_turned(cos, sin)
    first = rotation._last
    assert_turned(cos, sin)
    assert first is not None
    assert rotation._last is first


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("which", [0, 1], ids=["cos", "sin"])
def test_angles_changed_in_place_are_seen(which: int, compiled: bool) -> None:
    run: Any = apply_rotary_pos_emb
    if compiled:
        torch.compiler.reset()
        run = torch.compile(run, backend="eager", fullgraph=True)
    both, other = angles(), angles(0.5)
    assert_turned(*both, run)
    assert_turned(*both)
    both[which].copy_(other[which])
    assert_turned(*both, run)


def test_it_is_traced_where_there_is_a_default_device() -> None:
    torch.compiler.reset()
    run: Any = torch.compile(apply_rotary_pos_emb, backend="eager", fullgraph=True)
    with torch.device("cpu"):
        assert_turned(*angles(), run)


def test_inference_tensors_changed_in_place_are_seen() -> None:
    with torch.inference_mode():
        cos, sin = angles()
        assert_turned(cos, sin)
        cos.mul_(2)
        assert_turned(cos, sin)


@pytest.mark.parametrize("which", [0, 1], ids=["cos", "sin"])
def test_the_table_goes_with_its_sources(which: int) -> None:
    both: list[Any] = list(angles())
    assert_turned(*both)
    memo = rotation._last
    assert memo is not None
    source, table = weakref.ref(both[which]), weakref.ref(memo.table.cache)
    del memo
    both[which] = None
    assert source() is None
    assert table() is None
    assert rotation._last is None


def test_no_table_crosses_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """One from before would stay as it is in the graph; one from within holds nothing yet."""
    cos, sin = angles()
    assert_turned(cos, sin)
    before = rotation._last
    assert before is not None
    before.table.cache.zero_()  # so that its use shows
    with monkeypatch.context() as patch:
        capture(patch)
        assert_turned(cos, sin)
        assert_turned(*angles(0.5))
    assert rotation._last is before
