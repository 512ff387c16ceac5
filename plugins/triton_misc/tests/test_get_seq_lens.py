"""Lengths of more requests than one program has."""

from __future__ import annotations

import torch

from attnhub import PagedKV
from attnhub.page import get_seq_lens


def test_many_requests(device: torch.device) -> None:
    pages = torch.arange(300) % 4
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), pages.cumsum(0)]).int()
    last = torch.arange(300, dtype=torch.int32) % 16 + 1
    table = PagedKV(*(x.to(device) for x in (indptr, indptr.new_zeros(int(indptr[-1])), last)))
    expected = [int(16 * (n - 1) + m) if n else 0 for n, m in zip(pages, last, strict=True)]
    assert get_seq_lens(table, 16).tolist() == expected
