"""Cuts, prefix sums and the reader as plain functions, over many batches, against a plain model."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnhub.errors import InvalidArgument
from attnhub.kernels.section import Section
from tests.kernels import schedule_host as host
from tests.kernels import schedule_model as model
from tests.kernels.schedule_model import Lengths

MOST = 2**31 - 1
DECODE = Section(num_workers=8, tile_tokens=1, tile_cost=64, kv_block=16)
FIXED = replace(DECODE, split_len=64, fixed_slots=1000)

SIDES = st.just(-1) | st.integers(0, 400)
#: Empty, one block, several, many; and both lengths, so that either may be the larger.
LENGTHS = st.tuples(
    st.sampled_from([0, 1, 1]) | st.integers(0, 120),
    st.sampled_from([0, 1]) | st.integers(0, 40) | st.integers(0, 5000),
)
BATCHES = st.lists(LENGTHS, max_size=8)
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def sections(draw: st.DrawFn, *, is_fixed: bool) -> Section:
    kv_block = draw(st.sampled_from([1, 8, 16, 176]))  # 176: no power of two
    tile_tokens = draw(st.sampled_from([1, 18]) | st.integers(2, 64))  # 18: 128 rows, group 7
    section = Section(
        num_workers=draw(st.integers(1, 300)),
        tile_tokens=tile_tokens,
        tile_cost=draw(st.sampled_from([1, 64, 300])),
        kv_block=kv_block,
        min_piece=kv_block * draw(st.integers(0, 3)),
        num_heads=draw(st.sampled_from([1, 1, 2, 5])),
        min_qo_len=draw(st.sampled_from([1, 1, 2])),
        max_qo_len=draw(st.sampled_from([MOST, MOST, 40, 1])),
        window=(draw(SIDES), draw(SIDES)),
    )
    if not is_fixed:
        return section
    return replace(section, split_len=kv_block * draw(st.sampled_from([64, 99, 1000])))


def with_room(section: Section, lengths: list[Lengths]) -> Section:
    room = section.slots_for(
        batch=len(lengths),
        kv_tokens=sum(kv_len for _, kv_len in lengths),
        max_qo_len=max((qo_len for qo_len, _ in lengths), default=1) or 1,
    )
    return replace(section, fixed_slots=room)


def pieces_of(section: Section, lengths: list[Lengths]) -> list[list[model.Piece]]:
    return host.plan(section, lengths).pieces(section)


@many
@given(sections(is_fixed=False), BATCHES)
def test_balanced(section: Section, lengths: list[Lengths]) -> None:
    model.check(section, lengths, pieces_of(section, lengths))


@many
@given(sections(is_fixed=True), BATCHES)
def test_fixed(section: Section, lengths: list[Lengths]) -> None:
    """With the room that slots_for says every tile is cut at every multiple of split_len."""
    section = with_room(section, lengths)
    work = pieces_of(section, lengths)
    model.check(section, lengths, work)
    for piece in (piece for pieces in work for piece in pieces):
        assert piece.kv_begin // section.split_len >= (piece.kv_end - 1) // section.split_len


@many
@given(sections(is_fixed=True), BATCHES, st.integers(0, 40))
def test_fixed_with_too_few_slots(section: Section, lengths: list[Lengths], slots: int) -> None:
    """Whoever finds no room is not cut, and no slot lies beyond."""
    section = replace(section, fixed_slots=slots)
    model.check(section, lengths, pieces_of(section, lengths))


@many
@given(sections(is_fixed=True), BATCHES, LENGTHS)
def test_fixed_cuts_depend_on_the_request_alone(
    section: Section, others: list[Lengths], own: Lengths
) -> None:
    def cuts(lengths: list[Lengths]) -> list[tuple[int, ...]]:
        work = pieces_of(with_room(section, lengths), lengths)
        return [
            (p.head, p.tile, p.kv_begin, p.kv_end, p.piece_idx, p.num_pieces)
            for pieces in work
            for p in pieces
            if p.request_idx == len(lengths) - 1
        ]

    assert cuts([*others, own]) == cuts([own])


@many
@given(sections(is_fixed=False), BATCHES)
def test_sections_share_a_batch(section: Section, lengths: list[Lengths]) -> None:
    """Decode and prefill of a mixed batch: every request is in one of them."""
    sides = [replace(section, min_qo_len=1, max_qo_len=1), replace(section, min_qo_len=2)]
    sides[1] = replace(sides[1], max_qo_len=MOST)
    found = [{p.request_idx for w in pieces_of(side, lengths) for p in w} for side in sides]
    assert found[0] == {r for r, (qo_len, _) in enumerate(lengths) if qo_len == 1}
    assert found[1] == {r for r, (qo_len, _) in enumerate(lengths) if qo_len > 1}


LONG = st.integers(MOST - 100, MOST) | st.integers(0, MOST)


@many
@given(
    st.lists(st.tuples(LONG, LONG), min_size=1, max_size=3), SIDES | LONG, SIDES | LONG, st.data()
)
def test_up_to_two_billion_tokens(
    lengths: list[Lengths], left: int, right: int, data: st.DataObject
) -> None:
    longest = max(qo_len for qo_len, _ in lengths)
    num_heads = data.draw(st.sampled_from([1, 128]))
    kv_block = data.draw(st.sampled_from([64, 176]))
    section = Section(
        num_workers=data.draw(st.sampled_from([1, 132, 300])),
        tile_tokens=data.draw(st.integers(longest // (300 // num_heads) + 1, MOST)),  # few tiles
        tile_cost=data.draw(st.sampled_from([64, 10**6])),
        kv_block=kv_block,
        num_heads=num_heads,
        window=(left, right),
    )
    model.check(section, lengths, pieces_of(section, lengths))
    fixed = with_room(replace(section, split_len=kv_block * 10**6), lengths)
    model.check(fixed, lengths, pieces_of(fixed, lengths))


@many
@given(st.tuples(LONG, LONG), st.integers(1, 10**6), SIDES | LONG, SIDES | LONG)
def test_prefix_sums_of_tiles(lengths: Lengths, tile_tokens: int, left: int, right: int) -> None:
    """In closed form, what a sum over the first tiles gives."""
    section = replace(DECODE, tile_tokens=tile_tokens, window=(left, right))
    count = min(-(-lengths[0] // tile_tokens), 300)
    keys = [model.keys_of(section, lengths, tile) for tile in range(count)]
    sums = accumulate((section.tile_cost + end - begin for begin, end in keys), initial=0)
    assert host.tile_costs_before(section, lengths, count + 1) == list(sums)


def test_no_requests() -> None:
    assert pieces_of(DECODE, []) == [[]] * 8


def test_a_request_without_keys_is_visited() -> None:
    [[piece], *others] = pieces_of(DECODE, [(1, 0)])
    assert (piece.kv_begin, piece.kv_end, piece.num_pieces) == (0, 0, 1)
    assert not any(others)


def test_little_work_stays_with_few_workers() -> None:
    """No share is below what a visit costs."""
    used = [pieces for pieces in pieces_of(DECODE, [(1, 100)]) if pieces]
    assert [(p.kv_begin, p.kv_end) for [p] in used] == [(0, 64), (64, 100)]


def test_equal_requests_stay_whole() -> None:
    """Shares are exact: with a key too many, cuts would come to lie within requests."""
    work = pieces_of(replace(DECODE, num_workers=100), [(1, 1000)] * 100)
    assert [[(p.request_idx, p.num_pieces) for p in w] for w in work] == [
        [(r, 1)] for r in range(100)
    ]


def test_a_long_request_goes_to_all() -> None:
    work = pieces_of(DECODE, [(1, 8000 - 64)])
    assert [len(pieces) for pieces in work] == [1] * 8
    ends = [936, 1936, 2936, 3936, 4936, 5936, 6936, 7936]  # equal shares, before they are rounded
    assert [pieces[0].kv_end for pieces in work] == [round(end / 16 + 0.01) * 16 for end in ends]
    assert {pieces[0].num_pieces for pieces in work} == {8}


@pytest.mark.parametrize("before", [1000, 10**6])
def test_as_many_workers_as_there_may_be(before: int) -> None:
    """Who cuts a tile follows from quotients up to that number, and floats only come close."""
    section = replace(DECODE, num_workers=2**20, kv_block=1)
    ranges = host.plan(section, [(1, before), (1, MOST)]).ranges
    request, key, first_slot, num_pieces = ranges[:, [0, 3, 12, 13]].unbind(1)
    inside = ((request == 1) & (key > 0)).nonzero().flatten()
    assert len(inside) > 2**20 - 2**10
    assert (inside.diff() == 1).all()
    assert (first_slot[inside] == 2 * (inside[0] - 1)).all()
    assert (num_pieces[inside] == len(inside) + 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"num_workers": 0}, "num_workers=0: give 1", id="no worker"),
        pytest.param({"num_workers": 2**20 + 1}, "give 1 to 1048576", id="too many workers"),
        pytest.param({"tile_cost": 0}, "tile_cost=0: give 1", id="tiles for nothing"),
        pytest.param({"fixed_slots": 2**30}, "fixed_slots=1073741824: give 0", id="slots"),
        pytest.param({"min_piece": 24}, "min_piece=24: give a multiple", id="piece"),
        pytest.param({"split_len": 100}, "split_len=100: give a multiple", id="split"),
        pytest.param({"window": (-2, 0)}, r"window=\(-2, 0\): give numbers", id="window"),
    ],
)
def test_refuses(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replace(DECODE, **change)


def test_room_for_fixed_cuts() -> None:
    # 1000 keys in requests of at most 65 are cut into at most 15 times 2; 5 requests have 20.
    assert FIXED.slots_for(batch=1000, kv_tokens=1000, max_qo_len=1) == 31
    assert FIXED.slots_for(batch=5, kv_tokens=1000, max_qo_len=1) == 20
    narrow = replace(FIXED, window=(99, 0), num_heads=3)  # 100 keys lie in at most 3 blocks of 64
    assert narrow.slots_for(batch=2, kv_tokens=10**6, max_qo_len=4) == 2 * 3 * 3 * 4
    assert DECODE.slots_for(batch=5, kv_tokens=1000, max_qo_len=1) == 0
