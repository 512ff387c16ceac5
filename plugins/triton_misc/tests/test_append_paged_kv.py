"""Appending where the conformance suite does not reach: bad tables, wide tokens, far pages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.plugin import describe, registry
from attnhub_triton_misc.append import Append, Entries, Pages, Places, Table
from attnhub_triton_misc.append_paged_kv import append_paged_kv


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def append(
    new: Tensor, cache: Tensor, indptr: Tensor, indices: Tensor, places: list[tuple[int, int]]
) -> None:
    """Past the checks of the public function, which on a device sees no values either."""
    problem = registry().problem_class("page.append_paged_kv")(
        device=describe(new.device),
        dtype="float32",
        page_size=cache.shape[2],
        num_kv_heads=new.shape[1],
        head_dim_qk=new.shape[2],
        head_dim_vo=new.shape[2],
    )
    to = new.device
    where = (i32(*column).to(to) for column in zip(*places, strict=True))
    k_cache, v_cache = cache.unbind(1)
    append_paged_kv.plan(problem).run(
        new, -new, k_cache, v_cache, indptr.to(to), indices.to(to), *where, "NHD"
    )


@pytest.mark.parametrize(
    "place",
    [
        pytest.param((-1, 0), id="padding"),
        pytest.param((2, 0), id="no such request"),
        pytest.param((0, -1), id="before the first page"),
        pytest.param((0, 4), id="behind the last page, in one of another request"),
        pytest.param((1, 2), id="a page id behind the cache"),
        pytest.param((1, 4), id="a negative page id"),
        pytest.param((1, 6), id="behind the page ids"),
    ],
)
def test_what_leads_outside_is_dropped(place: tuple[int, int], device: torch.device) -> None:
    cache = torch.full((3, 2, 2, 1, 8), 7.0, device=device)
    new = torch.arange(1.0, 17, device=device).reshape(2, 1, 8)
    # Pages of request 0: 2, 0; of request 1: 1, then ids that are none, and one that is not there.
    indptr, indices = i32(0, 2, 6), i32(2, 0, 1, 3, -1)
    append(new, cache, indptr, indices, [place, (0, 3)])
    expected = torch.full_like(cache, 7.0)
    expected[0, 0, 1], expected[0, 1, 1] = new[1], -new[1]
    assert torch.equal(cache, expected)


@pytest.mark.parametrize(
    ("indptr", "ids", "pages"),
    [
        pytest.param((0,), (), 3, id="no requests"),
        pytest.param((0, 0), (), 3, id="no page ids"),
        pytest.param((0, 1), (0,), 0, id="no pages"),
    ],
)
def test_nothing_to_append_to(
    indptr: tuple[int, ...], ids: tuple[int, ...], pages: int, device: torch.device
) -> None:
    cache = torch.full((pages, 2, 2, 1, 8), 7.0, device=device)
    append(torch.ones(1, 1, 8, device=device), cache, i32(*indptr), i32(*ids), [(0, 0)])
    assert torch.equal(cache, torch.full_like(cache, 7.0))


def test_tokens_wider_than_a_tile(device: torch.device) -> None:
    heads, dim = 9, 256  # 9 KB: a tile of 8 KB, and one with a single head left
    cache = torch.zeros(2, 2, 2, heads, dim, device=device)
    new = torch.randn(3, heads, dim, generator=torch.Generator().manual_seed(0)).to(device)
    append(new, cache, i32(0, 2), i32(1, 0), [(0, 2), (0, 0), (0, 1)])
    expected = torch.zeros_like(cache)
    for token, (page, slot) in enumerate([(0, 0), (1, 0), (1, 1)]):
        expected[page, 0, slot], expected[page, 1, slot] = new[token], -new[token]
    assert torch.equal(cache, expected)


def test_pages_whose_offsets_pass_int32(device: torch.device) -> None:
    # Page 3 of pages of 2^30 elements, and a slot that comes back from there: in 32 bits, neither
    # the page's offset nor the sum is right.
    cache = torch.zeros(32, dtype=torch.uint8, device=device)
    new = torch.arange(1, 9, dtype=torch.uint8, device=device)
    far, back = 1 << 30, 16 - 3 * (1 << 30)
    one, three = i32(1).to(device), i32(3).to(device)
    table = Table(i32(0, 1).to(device), three, requests=1, ids=1, pages=4)
    places = Places(one - 1, one, tokens=1)
    a, b = ((Entries(new[start:], 0, 0), Pages(cache[start:], far, back, 0)) for start in (0, 4))
    facts = {"dtype": "float8_e4m3fn", "page_size": 2, "dim_ckv": 4, "dim_kpe": 4}
    problem = registry().problem_class("page.append_paged_mla").of(device, **facts)
    Append(problem, 1, (4, 4)).launch(a, b, table, places)
    assert cache.tolist() == [*[0] * 16, *new.tolist(), *[0] * 8]
