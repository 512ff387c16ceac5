"""Appending to a paged cache: what is written, and what is refused before anything is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnhub.attn import PagedKV
from attnhub.errors import InvalidArgument
from attnhub.page import api, reference
from attnhub.page.reference import Layout
from tests.page.cache_cases import (
    DIM_K,
    DTYPES,
    HEADS,
    PAGE,
    PAGES,
    POSITION,
    REQUEST,
    TABLE,
    bits,
    caches,
    int32,
    nan,
    normal,
    replaced,
    written,
)

# --- append_paged_kv ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *[pytest.param("one-tensor", dtype, id=f"one-tensor-{dtype}") for dtype in DTYPES],
        pytest.param("layer-of-a-stack", torch.float16, id="layer-of-a-stack"),
        pytest.param("two-dims", torch.float32, id="tuple-of-different-dims"),
        pytest.param("two-dims", torch.float8_e4m3fn, id="tuple-of-different-dims-float8"),
    ],
)
def test_append_writes_its_slots_and_nothing_else(
    form: str, dtype: torch.dtype, layout: Layout
) -> None:
    cache = caches(form, layout, dtype)
    k_new = normal(5, HEADS, DIM_K, dtype=dtype)
    v_new = normal(5, HEADS, cache.v.shape[3], dtype=dtype, seed=1)
    expected = written(cache.k, k_new), written(cache.v, v_new)
    api.append_paged_kv(k_new, v_new, cache.given, TABLE, REQUEST, POSITION, layout=layout)
    assert torch.equal(bits(cache.k), expected[0])
    assert torch.equal(bits(cache.v), expected[1])


def test_append_takes_slices_of_a_packed_projection() -> None:
    packed = normal(5, 4 * HEADS, DIM_K)
    k_new, v_new = packed[:, :HEADS], packed[:, HEADS : 2 * HEADS]
    cache = caches("one-tensor", "NHD", torch.float32)
    expected = written(cache.k, k_new), written(cache.v, v_new)
    api.append_paged_kv(k_new, v_new, cache.given, TABLE, REQUEST, POSITION)
    assert torch.equal(bits(cache.k), expected[0])
    assert torch.equal(bits(cache.v), expected[1])


@pytest.mark.parametrize("tokens", [0, 3], ids=["no-token", "only-padding"])
def test_append_of_nothing_writes_nothing(tokens: int) -> None:
    cache, nobody = nan(PAGES, 2, PAGE, HEADS, DIM_K), torch.full((tokens,), -1).int()
    new = normal(tokens, HEADS, DIM_K)
    api.append_paged_kv(new, new, cache, TABLE, nobody, nobody)
    empty = PagedKV(int32(0), int32(), int32())
    api.append_paged_kv(new, new, cache, empty, nobody, nobody)
    assert bool(cache.isnan().all())


def append(**changed: Any) -> None:
    """A good call with some arguments replaced."""
    arguments = {
        "k_new": normal(5, HEADS, DIM_K),
        "v_new": normal(5, HEADS, DIM_K),
        "kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K),
        "table": TABLE,
        "batch_indices": REQUEST,
        "positions": POSITION,
    }
    api.append_paged_kv(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param(
            {"k_new": normal(5, 2, DIM_K)},
            r"k_new has shape \[5, 2, 6\], needs \[tokens, 3, 6\]",
            id="heads",
        ),
        pytest.param(
            {"v_new": normal(4, HEADS, DIM_K)}, r"v_new has shape .* needs \[5, 3, 6\]", id="tokens"
        ),
        pytest.param({"k_new": torch.tensor(1.0)}, r"k_new has shape \[\], needs", id="scalar"),
        pytest.param(
            {"k_new": normal(5, HEADS, DIM_K).double()},
            "k_new has dtype float64, needs float16 or",
            id="float64",
        ),
        pytest.param(
            {"v_new": normal(5, HEADS, DIM_K).half()},
            "v_new has dtype float16, needs float32",
            id="v-dtype",
        ),
        pytest.param(
            {"kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K).bfloat16()},
            "k_cache has dtype bfloat16, but the new entries are float32; convert or quantise",
            id="cache-dtype",
        ),
        pytest.param(
            {"kv_cache": torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K, device="meta")},
            "k_cache is on meta, but k_new is on cpu",
            id="cache-device",
        ),
        pytest.param(
            {"k_new": normal(5, DIM_K, HEADS).mT},
            r"stride 3 in its last.*k_new\.contiguous\(\)",
            id="stride",
        ),
        pytest.param(
            {"kv_cache": torch.zeros(PAGES, 2, PAGE, DIM_K, HEADS).mT},
            r"k_cache has stride 3",
            id="cache-stride",
        ),
        pytest.param({"kv_cache": torch.zeros(8, 4, 3, 6)}, r"\[pages, 2, page", id="cache-4-D"),
        pytest.param(
            {"k_new": normal(5, HEADS, DIM_K).requires_grad_()}, "forward only", id="needs-grad"
        ),
        pytest.param({"layout": "BHSD"}, "layout='BHSD'; give 'NHD' or 'HND'", id="layout"),
        pytest.param({"table": (1, 2)}, r"table is a tuple; give PagedKV\(indptr", id="table"),
        pytest.param(
            {"positions": POSITION.long()},
            r"positions has dtype int64, needs int32; use positions\.to\(torch\.int32\)",
            id="int64",
        ),
        pytest.param(
            {"positions": POSITION[:4]}, r"positions has shape \[4\], needs \[5\]", id="positions"
        ),
        pytest.param(
            {"batch_indices": REQUEST.to("meta")},
            "batch_indices is on meta, needs cpu, where what it indexes is; move it",
            id="index-device",
        ),
        pytest.param(
            {"table": replaced(indptr=int32(0, 3, 2, 5))}, "indptr decreases at 2", id="indptr"
        ),
        pytest.param(
            {"table": replaced(indices=int32(7, 2, 6, 0))},
            r"indptr ends at 5 but table\.indices has 4 page ids",
            id="too-few-ids",
        ),
        pytest.param(
            {"table": replaced(indices=int32(7, 8, 6, 0, 5))},
            r"indices\[1\] is 8, needs 0 to 7 \(pages of the cache\)",
            id="page-past-the-cache",
        ),
        pytest.param(
            {"table": replaced(indices=int32(7, -1, 6, 0, 5))},
            r"indices\[1\] is -1",
            id="page-minus-1",
        ),
        pytest.param(
            {"batch_indices": int32(0, 3, -1, 0, 2)},
            r"batch_indices\[1\] is 3, needs -1 to 2 \(-1 marks padding\)",
            id="request-past-the-batch",
        ),
        pytest.param(
            {"batch_indices": int32(0, -2, -1, 0, 2)}, r"batch_indices\[1\] is -2", id="minus-2"
        ),
        pytest.param(
            {"positions": int32(12, 5, -1, 3, 0)},
            "token 0 goes to position 12 of request 0, which owns 3 pages of 4; give the request",
            id="position-past-the-pages",
        ),
        pytest.param(
            {"positions": int32(8, 5, -1, 3, -1)},
            "token 4 goes to position -1",
            id="position-minus-1",
        ),
        pytest.param(
            {"batch_indices": int32(0, 1, -1, 0, 2)}, "request 1, which owns 0 pages", id="no-pages"
        ),
    ],
)
def test_bad_append_is_refused_before_it_writes(changed: dict[str, Any], message: str) -> None:
    cache = torch.zeros(PAGES, 2, PAGE, HEADS, DIM_K)
    with pytest.raises(InvalidArgument, match=message):
        append(**{"kv_cache": cache, **changed})
    assert not cache.any()


def test_pages_without_slots_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="pages of 0 slots; needs a page size >= 1"):
        append(kv_cache=torch.zeros(PAGES, 2, 0, HEADS, DIM_K))
    with pytest.raises(InvalidArgument, match="pages of 0 slots"):
        api.append_paged_mla(
            normal(5, 8),
            normal(5, 2),
            torch.zeros(PAGES, 0, 8),
            torch.zeros(PAGES, 0, 2),
            TABLE,
            REQUEST,
            POSITION,
        )


def test_where_tokens_go_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    locate = reference.locate
    monkeypatch.setattr(reference, "locate", lambda *args: calls.append(args) or locate(*args))
    append()
    assert len(calls) == 1


def test_grad_is_no_hindrance_under_no_grad() -> None:
    with torch.no_grad():
        append(k_new=normal(5, HEADS, DIM_K).requires_grad_())


# --- append_paged_mla -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["slices-of-one-tensor", "two-tensors"])
def test_append_mla(dtype: torch.dtype, shared: bool) -> None:
    whole = nan(PAGES, PAGE, 512 + 64, dtype=dtype)
    ckv_cache, kpe_cache = whole.split((512, 64), dim=-1)
    if not shared:
        ckv_cache, kpe_cache = ckv_cache.contiguous(), kpe_cache.contiguous()
    ckv, kpe = normal(5, 512, dtype=dtype), normal(5, 64, dtype=dtype, seed=1)
    expected = written(ckv_cache, ckv), written(kpe_cache, kpe)
    api.append_paged_mla(ckv, kpe, ckv_cache, kpe_cache, TABLE, REQUEST, POSITION)
    assert torch.equal(bits(ckv_cache), expected[0])
    assert torch.equal(bits(kpe_cache), expected[1])


@pytest.mark.parametrize(
    ("at", "bad", "message"),
    [
        pytest.param(
            0, normal(5, 7), r"ckv has shape \[5, 7\], needs \[tokens, 8\]", id="ckv-shape"
        ),
        pytest.param(1, normal(4, 2), r"kpe has shape \[4, 2\], needs \[5, 2\]", id="kpe-tokens"),
        pytest.param(
            1, normal(5, 2).half(), "kpe has dtype float16, needs float32", id="kpe-dtype"
        ),
        pytest.param(
            2,
            normal(PAGES, PAGE, 1, 8),
            r"ckv_cache .* needs \[pages, page, dim_ckv\]",
            id="ckv-cache-4-D",
        ),
        pytest.param(
            3, normal(PAGES, 5, 2), r"kpe_cache .* needs \[8, 4, dim_kpe\]", id="kpe-cache-page"
        ),
        pytest.param(
            3,
            torch.empty(PAGES, PAGE, 2, device="meta"),
            "kpe_cache is on meta, but ckv is on cpu",
            id="kpe-cache-device",
        ),
        pytest.param(4, None, "table is a NoneType", id="table"),
        pytest.param(6, int32(12, 5, -1, 3, 0), "position 12 of request 0", id="position"),
    ],
)
def test_bad_append_mla_is_refused(at: int, bad: Any, message: str) -> None:
    caches_ = torch.zeros(PAGES, PAGE, 8), torch.zeros(PAGES, PAGE, 2)
    arguments: list[Any] = [normal(5, 8), normal(5, 2), *caches_, TABLE, REQUEST, POSITION]
    arguments[at] = bad
    with pytest.raises(InvalidArgument, match=message):
        api.append_paged_mla(*arguments)
    assert not caches_[0].any()
