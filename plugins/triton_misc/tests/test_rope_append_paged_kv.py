"""The fused append where the conformance suite does not reach: steps, bad tables, FP8 by casts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import PagedKV, Rope, Scales
from attnhub.plugin import registry
from attnhub.testing import assert_close, seeded
from attnhub_triton_misc import rope_append_paged_kv as planner
from attnhub_triton_misc import settings
from attnhub_triton_misc.append import Pages, Places, Table
from attnhub_triton_misc.launch import launch
from attnhub_triton_misc.rotation import Heads

E4M3 = torch.float8_e4m3fn
MAX_POSITION = 8


def i32(*values: int, device: torch.device | None = None) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def normal(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(*shape, generator=seeded(sum(shape))).to(device)


def as_by_reference(call: Any, cache: Tensor) -> None:
    """The call, which writes ``cache``, gives and writes what the reference does."""
    before = cache.clone()
    q = call()
    after = cache.clone()
    cache.copy_(before)
    with attnhub.use("reference"):
        expected = call()
    assert_close(q, expected)
    assert_close(after, cache)
    assert not torch.equal(before.view(torch.uint8), cache.view(torch.uint8))


@pytest.mark.parametrize("programs", [1, 3], ids=["one for all steps", "steps shared unevenly"])
@pytest.mark.parametrize("casts", [False, True], ids=["FP8 by arithmetic", "FP8 by casts"])
def test_a_program_goes_through_many_heads(
    programs: int, device: torch.device, monkeypatch: pytest.MonkeyPatch, *, casts: bool
) -> None:
    # In steps of eight heads: two of queries, two of keys, two of values.
    monkeypatch.setattr(settings, "FULL", programs)
    monkeypatch.setattr(planner, "has_casts", lambda _: casts)
    assert settings.heads_of_token((9, 10, 10), 128, 1).programs == programs
    qkv = normal(1, 9 + 2 * 10, 128, device=device)
    page_size = 4 + programs + casts  # another plan for each of these tests
    cache = torch.zeros(2, 2, page_size, 10, 128, device=device).to(E4M3)
    table = PagedKV(*(i32(*x, device=device) for x in ((0, 2), (1, 0), (3,))))
    turns = attnhub.rope.cos_sin_cache(MAX_POSITION, 128, Rope(rotary_dim=96), device=device)
    where = i32(0, device=device), i32(5, device=device)
    scales = Scales(q=2.0, k=1.5, v=torch.linspace(0.5, 2.0, 10, device=device))

    def call() -> Tensor:
        out = torch.zeros(1, 9, 128, device=device).to(E4M3)
        return attnhub.page.rope_append_paged_kv(
            qkv, turns, cache, table, *where, scales=scales, out=out
        )

    as_by_reference(call, cache)


def run_unchecked(
    q: Tensor, k: Tensor, cache: Tensor, indptr: Tensor, indices: Tensor, places: Any
) -> Tensor:
    """Past the checks of the public function, which on a device sees no values either."""
    kv_heads, dim = k.shape[1:]
    problem = (
        registry()
        .problem_class("page.rope_append_paged_kv")
        .of(
            q.device,
            dtype="float32",
            page_size=cache.shape[2],
            num_qo_heads=q.shape[1],
            num_kv_heads=kv_heads,
            head_dim_qk=dim,
            head_dim_vo=dim,
            rotary_dim=dim,
            tokens=len(q),
        )
    )
    quarter = torch.cat([torch.zeros(1, dim // 2), torch.ones(1, dim // 2)], dim=1)
    turns = quarter.expand(MAX_POSITION, dim).contiguous().to(q.device)
    out = torch.full_like(q, torch.nan)
    planner.rope_append_paged_kv.plan(problem).run(
        q, k, -k, turns, out, *cache.unbind(1), Scales(), indptr, indices, *places
    )
    return out


def quarter_turn(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


@pytest.mark.parametrize(
    ("owner", "position"),
    [
        pytest.param(2, 0, id="no such request"),
        pytest.param(0, 4, id="behind the last page, in one of another request"),
        pytest.param(1, 2, id="a page id behind the cache"),
        pytest.param(1, 6, id="behind the page ids"),
    ],
)
def test_what_leads_outside_turns_and_is_dropped(
    owner: int, position: int, device: torch.device
) -> None:
    cache = torch.full((3, 2, 2, 1, 8), 7.0, device=device)
    q, k = normal(2, 3, 8, device=device), normal(2, 1, 8, device=device)
    # Pages of request 0: 2, 0; of request 1: 1, then one that is none, and one that is not there.
    indptr, indices = i32(0, 2, 5, device=device), i32(2, 0, 1, 3, device=device)
    places = i32(owner, 0, device=device), i32(position, 3, device=device)
    assert_close(run_unchecked(q, k, cache, indptr, indices, places), quarter_turn(q))
    expected = torch.full_like(cache, 7.0)
    expected[0, 0, 1], expected[0, 1, 1] = quarter_turn(k[1]), -k[1]
    assert_close(cache, expected)


@pytest.mark.parametrize(
    ("indptr", "ids", "pages"),
    [
        pytest.param((0,), (), 3, id="no requests"),
        pytest.param((0, 0), (), 3, id="no page ids"),
        pytest.param((0, 1), (0,), 0, id="no pages"),
    ],
)
def test_queries_turn_where_there_is_nothing_to_append_to(
    indptr: tuple[int, ...], ids: tuple[int, ...], pages: int, device: torch.device
) -> None:
    cache = torch.full((pages, 2, 2, 1, 8), 7.0, device=device)
    q, k = normal(2, 3, 8, device=device), normal(2, 1, 8, device=device)
    table = i32(*indptr, device=device), i32(*ids, device=device)
    places = i32(0, -1, device=device), i32(0, -1, device=device)
    out = run_unchecked(q, k, cache, *table, places)
    assert_close(out, torch.stack([quarter_turn(q[0]), q[1]]))
    assert torch.equal(cache, torch.full_like(cache, 7.0))


def test_pages_whose_offsets_pass_int32(device: torch.device) -> None:
    # Page 3 of pages of 2^30 elements, and a slot that comes back from there: in 32 bits, neither
    # the page's offset nor the sum is right.
    cache = torch.zeros(24, device=device)
    far = 1 << 30
    pages = [Pages(cache[start:], far, 8 - 3 * far, 0) for start in (0, 8)]
    x = torch.arange(1.0, 9, device=device).reshape(1, 1, 8)
    heads, no_scale = Heads(x, 1, 0, 0), planner.Scale(1.0, None)
    one = i32(1, device=device)
    form = planner.Form(
        page_size=2, half=4, q_tail=0, k_tail=0, v_dim=8, interleaved=False, heads=1,
        q_fp8=0, fp8=0, casts=False,
    )  # fmt: skip
    still = torch.tensor([[1.0, 0.0]], device=device).repeat_interleave(4, dim=1)
    launch(
        planner._rope_append, (1, 1), device,
        heads, Heads(torch.empty_like(x), 1, 0, 0), no_scale,
        heads, pages[0], no_scale,
        heads, pages[1], no_scale,
        still, 0,
        Table(i32(0, 1, device=device), 3 * one, 1, 1, 4), Places(one - 1, one, 1),
        FORM=form, num_warps=1,
    )  # fmt: skip
    assert cache.tolist() == [*[0.0] * 8, *range(1, 9), *range(1, 9)]
