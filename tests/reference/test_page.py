"""The paged cache against a dictionary from (page, slot) to a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnhub.errors import InvalidArgument
from attnhub.page import reference
from attnhub.page.reference import Layout

PAGES, HEADS, DIM_K, DIM_V = 12, 3, 5, 4


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def numbered(*shape: int, start: int = 1) -> torch.Tensor:
    """Distinct small integers, exact in every dtype tested and told apart by any misplacement."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + start).reshape(shape).float()


def make_cache(layout: Layout, page_size: int, dim: int, *, form: str) -> torch.Tensor:
    """A cache full of NaN, [pages, page, heads, dim] or [pages, heads, page, dim]."""
    sizes = (page_size, HEADS) if layout == "NHD" else (HEADS, page_size)
    if form == "contiguous":
        return torch.full((PAGES, *sizes, dim), torch.nan)
    if form == "layer of a stack":
        return torch.full((PAGES, 3, 2, *sizes, dim), torch.nan)[:, 1, 1]
    return torch.full((sizes[1], PAGES, sizes[0], dim + 3), torch.nan).permute(1, 2, 0, 3)[
        ..., 2:-1
    ]


def rows_of(cache: torch.Tensor, layout: Layout) -> dict[tuple[int, int], torch.Tensor]:
    """Every (page, slot) of the cache that holds anything but NaN: its [heads, dim]."""
    found = {}
    for page in range(cache.shape[0]):
        for slot in range(cache.shape[1 if layout == "NHD" else 2]):
            row = cache[page, slot] if layout == "NHD" else cache[page, :, slot]
            if not bool(row.float().isnan().all()):
                found[page, slot] = row
    return found


def assert_rows(
    cache: torch.Tensor, layout: Layout, expected: dict[tuple[int, int], torch.Tensor]
) -> None:
    found = rows_of(cache, layout)
    assert found.keys() == expected.keys()
    for where, row in expected.items():
        assert torch.equal(found[where].float(), row.float()), where


# Three requests over 12 pages in scattered order; the second owns nothing.
INDPTR, INDICES = int32([0, 3, 3, 5]), int32([7, 2, 11, 0, 5])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 4, 5], ids=["1-smallest", "4", "5-odd"])
@pytest.mark.parametrize("form", ["contiguous", "layer of a stack", "permuted slice"])
def test_append_fills_only_the_slots_it_names(layout: Layout, page_size: int, form: str) -> None:
    k_cache = make_cache(layout, page_size, DIM_K, form=form)
    v_cache = make_cache(layout, page_size, DIM_V, form=form)
    request, position = [0, 2, -1, 0, 2], [2 * page_size, 0, -1, 0, page_size]
    k_new, v_new = numbered(5, HEADS, DIM_K), numbered(5, HEADS, DIM_V, start=1000)
    reference.append(
        k_new,
        v_new,
        int32(request),
        int32(position),
        k_cache,
        v_cache,
        indptr=INDPTR,
        indices=INDICES,
        layout=layout,
    )
    slots = {(11, 0): 0, (0, 0): 1, (7, 0): 3, (5, 0): 4}
    assert_rows(k_cache, layout, {where: k_new[t] for where, t in slots.items()})
    assert_rows(v_cache, layout, {where: v_new[t] for where, t in slots.items()})


@given(data=st.data(), page_size=st.integers(1, 5), layout=st.sampled_from(["NHD", "HND"]))
def test_append_to_a_random_batch(data: st.DataObject, page_size: int, layout: Layout) -> None:
    before = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4), label="before")
    count = [data.draw(st.integers(0, 4)) for _ in before]
    after = [b + c for b, c in zip(before, count, strict=True)]
    pages = [-(-length // page_size) for length in after]
    free = iter(data.draw(st.permutations(range(sum(pages) + 2)), label="page ids"))
    owned = [[next(free) for _ in range(n)] for n in pages]
    padding = data.draw(st.integers(0, 3))
    indptr = int32([0, *pages]).cumsum(0).to(torch.int32)
    append_indptr = int32([0, *count]).cumsum(0).to(torch.int32)
    total = sum(count)
    request, position = reference.batch_indices_positions(
        append_indptr, int32(after), total + padding
    )
    sizes = (page_size, 2) if layout == "NHD" else (2, page_size)
    cache = torch.full((sum(pages) + 2, 2, *sizes, 3), torch.nan)
    new = numbered(total + padding, 2, 3)
    k_cache, v_cache = reference.split_cache(cache, layout)
    indices = int32([page for pages_of in owned for page in pages_of])
    reference.append(
        new,
        -new,
        request,
        position,
        k_cache,
        v_cache,
        indptr=indptr,
        indices=indices,
        layout=layout,
    )
    slots = [
        (owned[b][p // page_size], p % page_size)
        for b in range(len(before))
        for p in range(before[b], after[b])
    ]
    assert_rows(cache[:, 0], layout, {where: new[t] for t, where in enumerate(slots)})
    assert_rows(cache[:, 1], layout, {where: -new[t] for t, where in enumerate(slots)})


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_append_copies_any_dtype_bit_for_bit(dtype: torch.dtype) -> None:
    new = numbered(2, 1, 4).to(dtype)
    cache = torch.zeros(2, 3, 1, 4).to(dtype)
    zero = int32([0, 0])
    reference.append(
        new,
        new,
        zero,
        int32([2, 0]),
        cache,
        cache.clone(),
        indptr=int32([0, 1]),
        indices=int32([1]),
    )
    assert torch.equal(cache[1, [2, 0]].float(), new.float())
    assert cache[0].float().abs().sum() == 0


def test_append_reads_slices_of_a_packed_projection() -> None:
    packed = numbered(2, 4 * 3 * 2).reshape(2, 4, 6)
    k_new, v_new = packed[:, 1:2, ::2], packed[:, 2:3, ::2]
    k_cache, v_cache = torch.full((1, 2, 1, 3), torch.nan), torch.full((1, 2, 1, 3), torch.nan)
    where = int32([0, 0]), int32([0, 1])
    indptr, indices = int32([0, 1]), int32([0])
    reference.append(k_new, v_new, *where, k_cache, v_cache, indptr=indptr, indices=indices)
    assert torch.equal(k_cache[0], k_new)
    assert torch.equal(v_cache[0], v_new)


@pytest.mark.parametrize("count", [0, 3], ids=["no-token", "only-padding"])
def test_append_of_nothing_writes_nothing(count: int) -> None:
    cache = torch.full((2, 2, 2, 1, 3), torch.nan)
    k_cache, v_cache = reference.split_cache(cache)
    new, nobody = torch.ones(count, 1, 3), torch.full((count,), -1, dtype=torch.int32)
    indptr, indices = int32([0]), int32([])
    reference.append(new, new, nobody, nobody, k_cache, v_cache, indptr=indptr, indices=indices)
    assert cache.isnan().all()


OUTSIDE = [
    pytest.param(0, 12, INDICES, id="past-the-last-page"),
    pytest.param(0, 2**31 - 1, INDICES, id="largest-position"),
    pytest.param(1, 0, INDICES, id="request-without-pages"),
    pytest.param(2, -1, INDICES, id="negative-position"),
    pytest.param(2, -(2**31), INDICES, id="smallest-position"),
    pytest.param(3, 0, INDICES, id="request-past-the-batch"),
    pytest.param(-2, 0, INDICES, id="negative-request"),
    pytest.param(2, 4, INDICES[:4], id="id-that-is-not-there"),
    pytest.param(2, 4, int32([7, 2, 11, 0, PAGES]), id="page-past-the-cache"),
    pytest.param(2, 4, int32([7, 2, 11, 0, -1]), id="negative-page"),
]


@pytest.mark.parametrize(("request_", "position", "indices"), OUTSIDE)
@pytest.mark.parametrize("alone", [False, True], ids=["beside-a-good-token", "alone"])
def test_a_token_outside_the_pages_goes_nowhere(
    request_: int, position: int, indices: torch.Tensor, alone: bool
) -> None:
    k_cache = make_cache("NHD", 4, DIM_K, form="contiguous")
    v_cache = make_cache("NHD", 4, DIM_V, form="contiguous")
    where = int32([request_, 0]), int32([position, 5])
    k_new, v_new = numbered(2, HEADS, DIM_K), numbered(2, HEADS, DIM_V)
    tokens = slice(0, 1 if alone else 2)
    reference.append(
        k_new[tokens],
        v_new[tokens],
        where[0][tokens],
        where[1][tokens],
        k_cache,
        v_cache,
        indptr=INDPTR,
        indices=indices,
    )
    assert_rows(k_cache, "NHD", {} if alone else {(2, 1): k_new[1]})
    assert_rows(v_cache, "NHD", {} if alone else {(2, 1): v_new[1]})


class NoHostRead(TorchDispatchMode):
    """Fails on every op that a GPU would have to wait for, as its result or size is a value."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert func.overloadpacket not in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
            torch.ops.aten.is_nonzero,
            torch.ops.aten.equal,
        )
        if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_):
            assert all(i is None or i.dtype != torch.bool for i in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append_reads_no_value_on_the_host(layout: Layout) -> None:
    new, where = numbered(3, HEADS, DIM_K), (int32([0, -1, 2]), int32([1, -1, 6]))
    caches = [make_cache(layout, 4, DIM_K, form="contiguous") for _ in "kv"]
    latent = torch.full((PAGES, 4, DIM_K), torch.nan)
    table = {"indptr": INDPTR, "indices": INDICES}
    with NoHostRead():
        reference.append(new, new, *where, *caches, **table, layout=layout)
        reference.append_mla(new[:, 0], new[:, 0], *where, latent, latent.clone(), **table)
    for cache in caches:
        assert_rows(cache, layout, {(7, 1): new[0], (5, 2): new[2]})
    assert torch.equal(latent[5, 2], new[2, 0])


def test_append_never_converts() -> None:
    k_cache, v_cache = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2).bfloat16()
    new, zero, indptr = torch.ones(1, 1, 2), int32([0]), int32([0, 1])
    with pytest.raises(
        InvalidArgument, match=r"entries are torch\.float32.*cache is torch\.bfloat"
    ):
        reference.append(new, new, zero, zero, k_cache, v_cache, indptr=indptr, indices=zero)
    assert k_cache.abs().sum() == 0


def test_append_refuses_an_unknown_layout() -> None:
    cache, new, zero, indptr = (
        torch.zeros(1, 1, 1, 2),
        torch.ones(1, 1, 2),
        int32([0]),
        int32([0, 1]),
    )
    unknown: Any = "BHSD"
    with pytest.raises(InvalidArgument, match="layout='BHSD'; give 'NHD' or 'HND'"):
        reference.append(
            new, new, zero, zero, cache, cache, indptr=indptr, indices=zero, layout=unknown
        )


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("shared", [True, False], ids=["slices-of-one-tensor", "two-tensors"])
def test_append_mla_fills_only_the_slots_it_names(page_size: int, shared: bool) -> None:
    whole = torch.full((PAGES, page_size, 7 + 2), torch.nan)
    ckv_cache, kpe_cache = whole.split([7, 2], dim=-1)
    if not shared:
        ckv_cache, kpe_cache = ckv_cache.clone(), kpe_cache.clone()
    ckv_new, kpe_new = numbered(3, 7), numbered(3, 2, start=500)
    request, position = int32([2, -1, 0]), int32([2 * page_size - 1, -1, page_size])
    page_table = {"indptr": INDPTR, "indices": INDICES}
    reference.append_mla(ckv_new, kpe_new, request, position, ckv_cache, kpe_cache, **page_table)
    slots = {(5, page_size - 1): 0, (2, 0): 2}
    for cache, new in ((ckv_cache, ckv_new), (kpe_cache, kpe_new)):
        assert_rows(cache, "NHD", {where: new[t] for where, t in slots.items()})


# --- metadata -------------------------------------------------------------------------------------


@given(
    requests=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=8),
    padding=st.integers(0, 4),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_new_tokens_are_the_last_of_their_request(
    requests: list[tuple[int, int]], padding: int, dtype: torch.dtype
) -> None:
    new, old = [r[0] for r in requests], [r[1] for r in requests]
    append_indptr = torch.tensor([0, *new]).cumsum(0).to(dtype)
    lengths = torch.tensor([n + o for n, o in requests], dtype=dtype)
    request, position = reference.batch_indices_positions(
        append_indptr, lengths, sum(new) + padding
    )
    assert request.dtype == position.dtype == torch.int32
    pairs = [(b, old[b] + i) for b in range(len(new)) for i in range(new[b])]
    assert list(zip(request.tolist(), position.tolist(), strict=True)) == [
        *pairs,
        *[(-1, -1)] * padding,
    ]


@pytest.mark.parametrize(
    ("pages", "last", "expected"),
    [
        pytest.param([1, 3], [1, 16], [1, 48], id="one-slot-and-full"),
        pytest.param([0, 2, 0], [0, 5, 0], [0, 21, 0], id="empty-requests"),
        pytest.param([0], [16], [0], id="no-page-whatever-the-last-length"),
        pytest.param([], [], [], id="no-request"),
    ],
)
def test_seq_lens(pages: list[int], last: list[int], expected: list[int]) -> None:
    indptr = int32([0, *pages]).cumsum(0).to(torch.int32)
    lengths = reference.seq_lens(indptr, int32(last), 16)
    assert lengths.dtype == torch.int32
    assert lengths.tolist() == expected


# --- cache forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_split_cache_gives_views_keys_first(layout: Layout) -> None:
    cache = torch.zeros(4, 2, 3, 5, 6)
    k_cache, v_cache = reference.split_cache(cache, layout)
    k_cache.fill_(1.0)
    v_cache.fill_(2.0)
    assert torch.equal(cache[:, 0], torch.ones(4, 3, 5, 6))
    assert torch.equal(cache[:, 1], torch.full((4, 3, 5, 6), 2.0))


def test_split_cache_passes_a_tuple_of_different_dims() -> None:
    pair = torch.zeros(4, 3, 5, 192), torch.zeros(4, 3, 5, 128)
    assert reference.split_cache(pair) == pair


@pytest.mark.parametrize(
    ("cache", "layout", "message"),
    [
        pytest.param(torch.zeros(4, 3, 5, 6), "NHD", r"\[pages, 2, page, heads, dim\]", id="4-D"),
        pytest.param(
            torch.zeros(2, 4, 3, 5, 6), "HND", r"\[pages, 2, heads, page, dim\]", id="kv-axis-first"
        ),
        pytest.param(
            (torch.zeros(4, 3, 5, 6), torch.zeros(4, 3, 1, 6)), "NHD", "differ at most", id="heads"
        ),
        pytest.param((torch.zeros(4, 3, 5), torch.zeros(4, 3, 5)), "NHD", "two tensors", id="3-D"),
        pytest.param(torch.zeros(4, 2, 3, 5, 6), "nhd", "layout='nhd'", id="unknown-layout"),
    ],
)
def test_split_cache_refuses_other_forms(
    cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor], layout: Layout, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        reference.split_cache(cache, layout)
