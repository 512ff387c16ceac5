"""Where tokens go and how long requests are: values and checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnhub.attn import PagedKV
from attnhub.errors import InvalidArgument
from attnhub.page import api
from tests.page.cache_cases import PAGE, TABLE, int32, replaced


@pytest.mark.parametrize(
    ("indptr", "lens", "tokens", "expected"),
    [
        pytest.param(
            (0, 2, 2, 5),
            (9, 4, 3),
            7,
            [(0, 7), (0, 8), (2, 0), (2, 1), (2, 2), (-1, -1), (-1, -1)],
            id="one-request-without-new-tokens-and-padding",
        ),
        pytest.param((0, 1, 2), (1, 1), 2, [(0, 0), (1, 0)], id="first-tokens"),
        pytest.param((0, 0), (3,), 0, [], id="no-token"),
        pytest.param((0,), (), 1, [(-1, -1)], id="no-request"),
    ],
)
def test_get_batch_indices_positions(
    indptr: tuple[int, ...], lens: tuple[int, ...], tokens: int, expected: list[tuple[int, int]]
) -> None:
    request, position = api.get_batch_indices_positions(int32(*indptr), int32(*lens), tokens)
    assert request.dtype == position.dtype == torch.int32
    assert list(zip(request.tolist(), position.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            (torch.tensor([0, 1]), int32(1), 1), "append_indptr has dtype int64", id="int64"
        ),
        pytest.param((int32(0, 1), int32(1, 2), 1), r"seq_lens .* needs \[1\]", id="length"),
        pytest.param((int32(0, 1), int32(1), -1), "num_tokens=-1", id="negative"),
        pytest.param((int32(0, 1), int32(1), 1.0), "num_tokens=1.0: needs an integer", id="float"),
        pytest.param((int32(0, 1), int32(1), True), "num_tokens=True", id="bool"),
        pytest.param((int32(1, 2), int32(1), 1), r"append_indptr\[0\] is 1, needs 0", id="start"),
        pytest.param(
            (int32(0, 3), int32(4), 2), "num_tokens=2, but append_indptr ends at 3", id="too-few"
        ),
        pytest.param(
            (int32(0, 1, 4), int32(1, 2), 4),
            r"seq_lens\[1\] is 2, fewer than the 3 tokens .* lengths after the append",
            id="lengths-before-the-append",
        ),
        pytest.param(
            (int32(0, 1), int32(1).to("meta"), 1), "seq_lens is on meta, needs cpu", id="device"
        ),
        pytest.param((int32(), int32(), 0), r"append_indptr is empty", id="empty-indptr"),
    ],
)
def test_bad_append_lengths_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.get_batch_indices_positions(*arguments)


def test_get_seq_lens() -> None:
    lens = api.get_seq_lens(TABLE, PAGE)
    assert lens.dtype == torch.int32
    assert lens.tolist() == [12, 0, 6]
    assert api.get_seq_lens(PagedKV(int32(0), int32(), int32()), PAGE).tolist() == []


@pytest.mark.parametrize(
    ("table", "page_size", "message"),
    [
        pytest.param(TABLE, 0, "page_size=0: needs an integer >= 1", id="page-size"),
        pytest.param(TABLE, "4", "page_size='4': needs an integer >= 1", id="page-size-text"),
        pytest.param(int32(0), 4, "table is a Tensor", id="no-table"),
        pytest.param(
            replaced(last_page_len=int32(4, 0)),
            4,
            r"table\.last_page_len .* needs \[3\]",
            id="batch",
        ),
        pytest.param(
            replaced(last_page_len=int32(4, 0, 5)),
            4,
            r"table\.last_page_len\[2\] is 5, needs 1 to 4 \(tokens in the last page",
            id="too-long",
        ),
        pytest.param(
            replaced(last_page_len=int32(0, 0, 5)), 8, r"last_page_len\[0\] is 0", id="none-used"
        ),
    ],
)
def test_bad_table_is_refused(table: Any, page_size: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.get_seq_lens(table, page_size)
