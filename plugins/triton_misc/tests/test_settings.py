"""Launch settings: all that can be chosen fits into registers, and covers what it is chosen for."""

from __future__ import annotations

import pytest

from attnhub_triton_misc import settings

SIZES = (1, 2, 3, 40, 111, 128, 2048, 2049, 14336, 16384, 16385, 1 << 20)
ROWS = (None, 0, 1, 128, 4096, 1 << 20)
#: Triton's limit of elements in a tile.
MOST = 1 << 20


def is_power_of_2(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def test_every_row_of_the_tables_is_legal() -> None:
    tables = [vars(settings)[name] for name in dir(settings) if name.isupper()]
    rows = [row for table in tables for row in (table if isinstance(table, tuple) else (table,))]
    found = [row for row in rows if isinstance(row, settings.RowSettings)]
    assert len(found) >= 7
    for row in found:
        assert row.is_legal(), row
        assert is_power_of_2(row.block), row
        assert is_power_of_2(row.warps), row
        assert row.reason


@pytest.mark.parametrize("hidden", SIZES)
def test_rows_are_held_whole_up_to_the_longest_tile(hidden: int) -> None:
    tile = settings.whole_row(hidden)
    assert tile.is_legal()
    assert (tile.block >= hidden) == (hidden <= settings.WHOLE_ROWS[-1].block)
    assert is_power_of_2(tile.rows)
    assert tile.rows == 1 or tile.block < 2 * hidden


@pytest.mark.parametrize("columns", SIZES)
def test_streams_of_any_size(columns: int) -> None:
    for rows in ROWS:
        tile = settings.streamed(rows, columns)
        assert tile.is_legal()
        assert is_power_of_2(tile.rows)
        assert is_power_of_2(tile.block)
    assert settings.streamed(1, 14336).block * 32 < 14336  # one token spreads over many SMs
    assert settings.streamed(16384, 14336).block == settings.STREAM.block


@pytest.mark.parametrize("dim", SIZES)
def test_merges_of_any_size(dim: int) -> None:
    for rows in ROWS:
        for heads in (0, 1, 3, 32, 128):
            for states in (0, 1, 2, 8, 132, 5000):
                tile = settings.merged(states, heads, dim, rows)
                assert tile.is_legal(), tile
                assert min(tile.states, tile.rows, tile.block, tile.warps) >= 1
                assert all(map(is_power_of_2, (tile.states, tile.rows, tile.block, tile.warps)))
                assert tile.states * tile.rows * tile.block <= MOST
