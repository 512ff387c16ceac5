"""Tables of cosines and sines, and positions of ragged batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnhub
from attnhub import Rope
from attnhub.errors import InvalidArgument
from attnhub.rope import frequencies, reference
from attnhub.variant.rope import YarnScaling


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("rope", "width"),
    [
        pytest.param(Rope(theta=5e5), 12, id="whole-head"),
        pytest.param(Rope(rotary_dim=8), 8, id="partial"),
        pytest.param(
            Rope(scaling=YarnScaling(factor=4, original_max_position=64)), 12, id="scaled"
        ),
    ],
)
def test_table_is_as_wide_as_the_head_turns(rope: Rope, width: int) -> None:
    cache = attnhub.rope.cos_sin_cache(20, 12, rope)
    assert torch.equal(cache, frequencies.cos_sin_cache(20, width, rope.theta, rope.scaling))


def test_table_has_no_negative_size() -> None:
    assert attnhub.rope.cos_sin_cache(0, 12, Rope()).shape == (0, 12)
    with pytest.raises(InvalidArgument, match="max_position=-1: give"):
        attnhub.rope.cos_sin_cache(-1, 12, Rope())


@given(
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(-5, 10**9)), max_size=8),
    padding=st.none() | st.integers(0, 3),
)
def test_positions_are_the_references(requests: list[tuple[int, int]], padding: int | None) -> None:
    indptr = int32(0, *(r[0] for r in requests)).cumsum(0).to(torch.int32)
    offsets = int32(*(r[1] for r in requests))
    held = int(indptr[-1])
    tokens = None if padding is None else held + padding
    actual = attnhub.rope.positions(indptr, offsets, tokens=tokens)
    expected = reference.positions_from_offsets(indptr, offsets)
    assert actual.dtype == torch.int32
    assert actual.tolist() == expected.tolist() + [0] * (padding or 0)


def test_positions_compile_whole() -> None:
    compiled = torch.compile(attnhub.rope.positions, fullgraph=True, backend="aot_eager")
    indptr, offsets = int32(0, 2, 2, 5), int32(10, 20, 30)
    assert compiled(indptr, offsets, tokens=6).tolist() == [10, 11, 30, 31, 32, 0]


@pytest.mark.parametrize(
    ("indptr", "offsets", "tokens", "message"),
    [
        pytest.param(int32(0, 2).long(), int32(0), None, "indptr has dtype int64", id="int64"),
        pytest.param(int32(), int32(), None, r"indptr is empty, needs \[batch", id="empty"),
        pytest.param(
            int32(0, 2), int32(0, 0), None, r"offsets has shape \[2\], needs \[1", id="batch"
        ),
        pytest.param(int32(0, 2), int32(0).to("meta"), None, "offsets is on meta", id="device"),
        pytest.param(int32(1, 2), int32(0), None, r"indptr\[0\] is 1, needs 0", id="start"),
        pytest.param(int32(0, 2, 1), int32(0, 0), None, "decreases at 2", id="descends"),
        pytest.param(int32(0, 2), int32(0), 1, r"tokens=1, but indptr\[-1\] is 2", id="few-tokens"),
        pytest.param(int32(0, 2), int32(0), -1, "tokens=-1: give", id="negative"),
        pytest.param(
            int32(0, 2).to("meta"), int32(0).to("meta"), None, "tokens= is needed", id="no-tokens"
        ),
    ],
)
def test_bad_batch_is_refused(
    indptr: torch.Tensor, offsets: torch.Tensor, tokens: int | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        attnhub.rope.positions(indptr, offsets, tokens=tokens)


def test_positions_of_another_device_need_no_values() -> None:
    assert attnhub.rope.positions(int32(0, 2).to("meta"), int32(0).to("meta"), tokens=3).shape == (
        3,
    )
