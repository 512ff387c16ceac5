"""Lengths of many requests: the same numbers and the same errors as of few."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import attnhub
from attnhub.attn.lengths import Lengths
from attnhub.core.staging import Staging
from attnhub.errors import InvalidArgument

MANY = 300


@pytest.mark.parametrize(
    ("numbers", "is_array"),
    [
        ([3, 0, 5, 1], False),
        ([7], False),
        ([], False),
        ([3, 0, 5, 1], True),
        ([7], True),
        ([], True),
    ],
    ids=str,
)
def test_are_what_a_list_is(numbers: list[int], is_array: bool) -> None:
    lengths = Lengths(np.array(numbers, dtype=np.int32) if is_array else numbers)
    assert lengths.values.tolist() == numbers
    assert lengths.total == sum(numbers)
    assert (lengths.longest, lengths.shortest) == (max(numbers, default=0), min(numbers, default=0))
    assert lengths.padded(len(numbers) + 2) == [*numbers, 0, 0]
    assert lengths == numbers
    assert [*lengths] == numbers
    assert (len(lengths), repr(lengths), lengths[1:]) == (len(numbers), repr(numbers), numbers[1:])
    assert lengths != [*numbers, 1]
    lengths.tolist().append(9)  # the caller's own
    assert lengths == numbers
    if numbers:
        with pytest.raises(ValueError, match=f"{len(numbers)} lengths do not fit into 0"):
            lengths.padded(0)


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention() -> attnhub.BatchAttention:
    return attnhub.BatchAttention(2, 1, 16, "float32", attnhub.Paged(4), device="cpu")


def plan(
    attn: attnhub.BatchAttention, starts: list[int], pages: list[int], last: list[int]
) -> None:
    kv = attnhub.PagedKV(ints(pages), torch.zeros(max(pages), dtype=torch.int32), ints(last))
    attn.plan(ints(starts), kv)


@pytest.mark.parametrize("count", [3, MANY])
def test_of_a_batch(count: int) -> None:
    attn = attention()
    each = [*range(count + 1)]
    plan(attn, [2 * n for n in each], [3 * n for n in each], [1 + n % 4 for n in each[:-1]])
    batch = attn._batch
    assert batch is not None
    assert batch.qo_lens == [2] * count
    assert batch.kv_lens == [8 + 1 + n % 4 for n in each[:-1]]
    assert (batch.max_qo_len, batch.min_qo_len, batch.num_tokens) == (2, 2, 2 * count)
    assert batch.max_kv_len == max(batch.kv_lens)


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize(
    ("starts", "pages", "last", "text"),
    [
        ([1], [0], [1], "qo_indptr[0] is 1, needs 0"),
        ([0, 5, 4], [0], [1], "qo_indptr decreases at 2 (5 to 4)"),
        ([0], [0, 3, 2], [1], "indptr decreases at 2 (3 to 2)"),
        ([0], [0], [9], "last_page_len[0] is 9, needs 1 to page_size=4"),
        ([0], [0], [0], "last_page_len[0] is 0, needs 1 to page_size=4"),
    ],
    ids=str,
)
def test_errors(
    count: int, starts: list[int], pages: list[int], last: list[int], text: str
) -> None:
    usual = [*range(count + 1)]

    def begin(given: list[int], rest: list[int]) -> list[int]:
        return [*given, *rest[len(given) :]]

    with pytest.raises(InvalidArgument, match=re.escape(text)):
        plan(attention(), begin(starts, usual), begin(pages, usual), begin(last, [1] * count))


def test_requests_without_pages() -> None:
    pages = [0, *range(MANY)]  # the first has none
    attn = attention()
    plan(attn, [*range(MANY + 1)], pages, [0, *[3] * (MANY - 1)])
    assert attn._batch is not None
    assert attn._batch.kv_lens == [0, *[3] * (MANY - 1)]


def test_uploads_are_views_of_one_copy() -> None:
    parts = ints([1, 2]), ints([]), ints([3])
    up = Staging(torch.device("cpu")).upload(*parts)
    assert [part.tolist() for part in up] == [[1, 2], [], [3]]
    assert up[2].data_ptr() == up[0].data_ptr() + 8
