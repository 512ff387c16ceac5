"""What a schedule must be: a plain model of the work, and the checks that any plan has to pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnhub.kernels.section import Section

PIECE_INTS = 16

#: Queries and keys of a request.
Lengths = tuple[int, int]
#: Request, head and tile.
TileId = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """``attnhub::Piece``, but for the request's lengths and places."""

    request_idx: int
    head: int
    tile: int
    kv_begin: int
    kv_end: int
    piece_idx: int
    num_pieces: int
    first_slot: int
    counter: int

    @classmethod
    def of(cls, ints: Sequence[int]) -> Piece:
        """From the words of the struct, in whose middle the request is aligned."""
        return cls(ints[0], *ints[8:PIECE_INTS])

    @property
    def tile_id(self) -> TileId:
        return self.request_idx, self.head, self.tile


def seen_by(section: Section, lengths: Lengths, query: int) -> tuple[int, int]:
    """The first and one past the last key of a query, by the rule in docs/conventions.md."""
    qo_len, kv_len = lengths
    (left, right), at = section.window, query + kv_len - qo_len
    first = 0 if left < 0 else max(at - left, 0)
    last = kv_len - 1 if right < 0 else min(at + right, kv_len - 1)
    return (first, last + 1) if first <= last else (0, 0)


def keys_of(section: Section, lengths: Lengths, tile: int) -> tuple[int, int]:
    """What any query of a tile sees. Queries see the more, the later they are."""
    first = tile * section.tile_tokens
    last = min(first + section.tile_tokens, lengths[0]) - 1
    begin, end = seen_by(section, lengths, first)[0], seen_by(section, lengths, last)[1]
    blind = next((q for q in (first, last) if seen_by(section, lengths, q) != (0, 0)), None)
    return (begin, end) if blind is not None else (end, end)


def tiles(section: Section, requests: Sequence[Lengths]) -> Iterator[tuple[TileId, int, int]]:
    """Every tile in order, with the keys that it sees."""
    for r, (qo_len, kv_len) in enumerate(requests):
        if not section.min_qo_len <= qo_len <= section.max_qo_len:
            continue
        count = -(-qo_len // section.tile_tokens)
        seen = [keys_of(section, (qo_len, kv_len), t) for t in range(count)]
        for head in range(section.num_heads):
            for tile, keys in enumerate(seen):
                yield (r, head, tile), *keys


def check(section: Section, requests: Sequence[Lengths], work: Sequence[Sequence[Piece]]) -> None:
    """That the pieces of all workers are the work of a batch, in order, fairly cut."""
    expected = list(tiles(section, requests))
    found: dict[TileId, list[Piece]] = {}
    for piece in (piece for pieces in work for piece in pieces):
        found.setdefault(piece.tile_id, []).append(piece)
    assert list(found) == [tile for tile, *_ in expected]
    for tile, begin, end in expected:
        pieces = found[tile]
        edges = [begin, *(piece.kv_end for piece in pieces)]
        assert [piece.kv_begin for piece in pieces] == edges[:-1]
        assert edges[-1] == end
        assert len(pieces) == 1 or edges == sorted(set(edges))
        _check_cuts(section, edges)
        _check_labels(section, pieces)
    _check_slots(section, [pieces for pieces in found.values() if len(pieces) > 1])
    _check_balance(section, expected, work)


def _check_cuts(section: Section, edges: list[int]) -> None:
    if section.split_len:
        cuts = range(edges[0] // section.split_len + 1, -(-edges[-1] // section.split_len))
        assert edges[1:-1] in ([], [cut * section.split_len for cut in cuts])
        return
    least = section.min_piece or section.kv_block
    assert all(cut % section.kv_block == 0 for cut in edges[1:-1])
    if len(edges) > 2:
        assert min(b - a for a, b in pairwise(edges)) >= least


def _check_labels(section: Section, pieces: list[Piece]) -> None:
    assert [piece.piece_idx for piece in pieces] == list(range(len(pieces)))
    assert {piece.num_pieces for piece in pieces} == {len(pieces)}
    assert len({(piece.first_slot, piece.counter) for piece in pieces}) == 1


def _check_slots(section: Section, cut_tiles: list[list[Piece]]) -> None:
    slots = [pieces[0].first_slot + i for pieces in cut_tiles for i in range(len(pieces))]
    counters = [pieces[0].counter for pieces in cut_tiles]
    for used, room in ((slots, section.num_slots), (counters, -(-section.num_slots // 2))):
        assert len(set(used)) == len(used)
        assert all(0 <= i < room for i in used)


def _check_balance(
    section: Section,
    expected: list[tuple[TileId, int, int]],
    work: Sequence[Sequence[Piece]],
) -> None:
    """No worker gets more than its share by what its two ends may move, nor less."""
    total = sum(section.tile_cost + end - begin for _, begin, end in expected)
    if section.split_len:  # tiles without slots stay whole
        least = 1
        reach = max((section.tile_cost + end - begin for _, begin, end in expected), default=0)
    else:
        least = section.min_piece or section.kv_block
        reach = section.tile_cost + least + section.kv_block
    share = max(-(-total // section.num_workers), section.tile_cost, least)
    begins = {tile: begin for tile, begin, _ in expected}
    costs = [
        sum(
            p.kv_end - p.kv_begin + section.tile_cost * (p.kv_begin == begins[p.tile_id])
            for p in pieces
        )
        for pieces in work
    ]
    assert sum(costs) == total
    busy = -(-total // share)
    for worker, cost in enumerate(costs):
        assert cost <= share + 2 * reach
        assert cost >= share - 2 * reach or worker >= busy - 1
