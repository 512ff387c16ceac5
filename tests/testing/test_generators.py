from __future__ import annotations

from collections import Counter

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.testing.generators import (
    indptr,
    lengths,
    masks,
    page_table,
    paged_cache,
    poison_,
    random_tensor,
    seeded,
    token_slots,
)

KINDS = ["uniform", "lognormal", "constant", "with_empty"]
FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_lengths_within_bounds(kind: str) -> None:
    drawn = lengths(200, 3, 90, kind, generator=seeded(7))
    assert drawn == lengths(200, 3, 90, kind, generator=seeded(7))
    assert len(drawn) == 200
    assert all(3 <= length <= 90 or (kind == "with_empty" and length == 0) for length in drawn)
    if kind != "constant":
        assert drawn != lengths(200, 3, 90, kind, generator=seeded(8))


def test_uniform_reaches_both_ends() -> None:
    assert Counter(lengths(400, 2, 4, generator=seeded(0))).keys() == {2, 3, 4}


def test_lognormal_has_many_short_and_few_long() -> None:
    drawn = sorted(lengths(1000, 1, 10_000, "lognormal", generator=seeded(0)))
    assert 70 < drawn[500] < 140  # the median is the geometric mean of the ends, 100
    assert sum(drawn) / 1000 > 3 * drawn[500]


def test_constant_is_the_upper_bound() -> None:
    assert lengths(3, 1, 5, "constant", generator=seeded(0)) == [5, 5, 5]


@pytest.mark.parametrize(
    "batch", [1, 2, 3, 40], ids=["alone", "a pair", "one in the middle", "many"]
)
def test_with_empty_starts_empty_and_keeps_somebody(batch: int) -> None:
    for seed in range(10):
        drawn = lengths(batch, 1, 9, "with_empty", generator=seeded(seed))
        assert drawn[0] == 0
        assert batch < 3 or drawn[-1] == 0
        assert batch == 1 or any(drawn)
        assert batch < 40 or 2 < drawn.count(0) < 30


@pytest.mark.parametrize("kind", KINDS[:2] + KINDS[3:])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0], ids=["the least", "between", "the most"])
def test_a_total_is_met_exactly(kind: str, share: float) -> None:
    free = lengths(20, 2, 50, kind, generator=seeded(3))
    filled = sum(length > 0 for length in free)
    total = filled * 2 + int(share * filled * 48)
    drawn = lengths(20, 2, 50, kind, generator=seeded(3), total=total)
    assert sum(drawn) == total
    assert [length > 0 for length in drawn] == [length > 0 for length in free]
    assert all(2 <= length <= 50 for length in drawn if length)


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="hold between 4 and 12"):
        lengths(4, 1, 3, generator=seeded(0), total=13)
    with pytest.raises(InvalidArgument, match="low <= high"):
        lengths(4, 5, 3, generator=seeded(0))
    with pytest.raises(InvalidArgument, match="'lognormal'"):
        lengths(4, 1, 3, "normal", generator=seeded(0))


def test_indptr_is_the_int32_prefix_sum() -> None:
    sums = indptr([3, 0, 2])
    assert sums.dtype == torch.int32
    assert sums.tolist() == [0, 3, 3, 5]
    assert indptr([]).tolist() == [0]
    with pytest.raises(InvalidArgument, match="beyond an int32"):
        indptr([2**30, 2**30])


@pytest.mark.parametrize(
    "page_size", [1, 5, 16], ids=["one token a page", "no power of two", "the usual"]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_owned_page_is_owned_once(page_size: int, shuffle: bool) -> None:
    lens = [16, 0, 1, 33, 5]
    table = page_table(lens, page_size, generator=seeded(0), shuffle=shuffle)
    owned = sum(-(-length // page_size) for length in lens)
    ids = table.indices.tolist()
    assert len(set(ids)) == len(ids) == owned
    assert table.num_pages == owned + 3
    assert 0 <= min(ids) <= max(ids) < table.num_pages
    assert (ids == sorted(ids)) != shuffle
    pages = table.indptr.diff().tolist()
    last = table.last_page_len.tolist()
    assert [max(p - 1, 0) * page_size + n for p, n in zip(pages, last, strict=True)] == lens
    assert {t.dtype for t in (table.indptr, table.indices, table.last_page_len)} == {torch.int32}


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_largest_page_id_is_reached(shuffle: bool) -> None:
    table = page_table([40, 7], 8, generator=seeded(1), shuffle=shuffle, max_page_id=1000)
    assert table.num_pages == 1001
    assert int(table.indices.max()) == 1000
    assert len(set(table.indices.tolist())) == 6


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="need at least 8"):
        page_table([40, 7], 8, generator=seeded(0), max_page_id=7)
    with pytest.raises(InvalidArgument, match="page_size >= 1"):
        page_table([4], 0, generator=seeded(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("combined", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_a_cache_holds_each_row_where_the_table_says_and_nan_elsewhere(
    dtype: torch.dtype, layout: str, combined: bool, strided: bool
) -> None:
    lens, page_size, heads, dim = [5, 0, 4, 1], 4, 2, 16
    generator = seeded(2)
    table = page_table(lens, page_size, generator=generator)
    k_rows, v_rows = (random_tensor((10, heads, dim), dtype, "cpu", generator) for _ in range(2))
    cache = paged_cache(
        k_rows, v_rows, lens, table, layout=layout, combined=combined, strided=strided
    )
    assert isinstance(cache, torch.Tensor) == combined
    sides = (cache[:, 0], cache[:, 1]) if combined else cache
    token = 0
    seen = torch.zeros(table.num_pages, page_size, dtype=torch.bool)
    for request, length in enumerate(lens):
        for position in range(length):
            page = int(table.indices[table.indptr[request] + position // page_size])
            slot = position % page_size
            seen[page, slot] = True
            at = (page, slot) if layout == "NHD" else (page, slice(None), slot)
            for side, rows in zip(sides, (k_rows, v_rows), strict=True):
                assert torch.equal(side[at].double(), rows[token].double())
            token += 1
    for side in sides:
        by_slot = side.double() if layout == "NHD" else side.double().transpose(1, 2)
        assert bool(by_slot[~seen].isnan().all())
        assert side.stride(-1) == 1
        assert side.dtype == dtype
    inner = [page_size, heads, dim] if layout == "NHD" else [heads, page_size, dim]
    assert all(list(side.shape) == [table.num_pages, *inner] for side in sides)
    tensors = (cache,) if combined else cache
    assert all(tensor.is_contiguous() != strided for tensor in tensors)
    assert all(stride % (16 // dtype.itemsize) == 0 for t in tensors for stride in t.stride()[:-1])


def test_a_cache_may_be_clean_and_have_two_dims() -> None:
    table = page_table([3], 2, generator=seeded(0))
    k_rows, v_rows = torch.ones(3, 1, 4), torch.full((3, 1, 2), 2.0)
    k, v = paged_cache(k_rows, v_rows, [3], table, combined=False, poison=False)
    assert (k.shape[-1], v.shape[-1]) == (4, 2)
    assert float(k.sum()) == 12
    assert float(v.sum()) == 12
    with pytest.raises(InvalidArgument, match="combined=False"):
        paged_cache(k_rows, v_rows, [3], table)


def test_a_table_of_other_lengths_is_refused() -> None:
    table = page_table([3, 9], 4, generator=seeded(0))
    with pytest.raises(InvalidArgument, match=r"own \[1, 3\] pages of 4"):
        token_slots([3, 4], table)
    with pytest.raises(InvalidArgument, match="lengths sum to 12"):
        paged_cache(torch.ones(11, 1, 4), torch.ones(11, 1, 4), [3, 9], table)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_poison_is_nan_in_every_float(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype)[:, ::2]
    assert poison_(tensor) is tensor
    assert bool(tensor.double().isnan().all())


def test_poison_of_other_dtypes_is_the_largest_value() -> None:
    assert poison_(torch.zeros(2, dtype=torch.int32)).tolist() == [2**31 - 1] * 2
    assert poison_(torch.zeros(2, dtype=torch.uint8)).tolist() == [255] * 2
    assert poison_(torch.zeros(2, dtype=torch.bool)).tolist() == [True] * 2


def test_masks_have_the_density_asked_for() -> None:
    drawn = masks([100, 0, 3], [200, 5, 0], 0.25, generator=seeded(0))
    assert [tuple(mask.shape) for mask in drawn] == [(100, 200), (0, 5), (3, 0)]
    assert all(mask.dtype == torch.bool for mask in drawn)
    assert 0.23 < float(drawn[0].double().mean()) < 0.27
    assert not masks([4], [4], 0.0, generator=seeded(0))[0].any()
    assert masks([4], [4], 1.0, generator=seeded(0))[0].all()
    with pytest.raises(InvalidArgument, match="density"):
        masks([4], [4], 1.5, generator=seeded(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_tensors_are_equal_across_dtypes_up_to_rounding(dtype: torch.dtype) -> None:
    drawn = random_tensor((200, 100), dtype, "cpu", seeded(5), 3.0)
    exact = random_tensor((200, 100), torch.float32, "cpu", seeded(5), 3.0)
    assert drawn.dtype == dtype
    assert torch.equal(drawn, exact.to(dtype))
    assert 2.94 < float(exact.std()) < 3.06  # four standard errors


def test_float8_values_stay_finite_at_any_scale() -> None:
    drawn = random_tensor((1000,), torch.float8_e4m3fn, "cpu", seeded(0), 1e4).float()
    assert float(drawn.abs().max()) == 448.0
    assert bool(drawn.isfinite().all())


def test_random_integers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="floating"):
        random_tensor((2,), torch.int32, "cpu", seeded(0))
