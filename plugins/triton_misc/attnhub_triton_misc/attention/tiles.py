"""Tiles and shares: what each kind of batch is launched with, and why."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.plugin import AttentionProblem

#: Of a tensor-core product, in every dimension.
_LEAST = 16
_KIB = 1024
_THREADS_OF_WARP = 32
#: float32 values of accumulators, scores and queries that a thread may hold. By what ptxas makes of
#: them: 128 spill by mma.sync, and by wgmma, whose queries lie in shared memory, 160.
_MOST_VALUES, _MOST_VALUES_OF_WGMMA = 112, 144
_WGMMA_SM, _WGMMA_ROWS = 90, 64
#: Keys of a share below which merging costs more than it spreads.
_LEAST_KEYS_OF_SHARE = 256
_MOST_SHARES = 32
#: Programs wanted for each SM.
_PROGRAMS_OF_SM = 2
#: Queries of the longest request where nothing is known of it, or may count.
_QUERIES_OF_ANY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSettings:
    """``rows`` x ``keys`` of a block of scores, for ``warps`` warps and ``stages`` of the pipeline.

    Rows are pairs of a query and a head of its group.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    reason: str

    def is_legal(self, problem: AttentionProblem) -> bool:
        """Whether the tile fits into the registers and the shared memory of the problem's GPU."""
        device = problem.device
        d_qk, d_vo = map(power_of_two, (problem.head_dim_qk, problem.head_dim_vo))
        by_wgmma = device.sm == _WGMMA_SM and self.rows >= _WGMMA_ROWS
        held = self.rows * (d_vo + self.keys)
        elements = (self.stages if by_wgmma else self.stages - 1) * self.keys * (d_qk + d_vo)
        if by_wgmma:
            elements += self.rows * d_qk
        else:
            held += self.rows * d_qk // 2
        most = _MOST_VALUES_OF_WGMMA if by_wgmma else _MOST_VALUES
        room = (device.smem_kb - device.smem_kept_kb) * _KIB
        return held <= most * self.warps * _THREADS_OF_WARP and 2 * elements <= room


#: Of tiles with enough rows the first is taken, of the fewest rows.
TILES = (
    TileSettings(
        rows=16, keys=128, warps=4, stages=2,
        reason="decode: the rows of a group; 64 KB of keys in flight, three programs an SM. By "
        "64 keys and three stages, as many bytes, an H200 read 3.1 TB/s instead of 4.2",
    ),
    TileSettings(rows=16, keys=64, warps=4, stages=2, reason="decode of wide heads"),
    TileSettings(rows=16, keys=32, warps=4, stages=2, reason="the same, in 100 KB"),
    TileSettings(
        rows=64, keys=64, warps=4, stages=3,
        reason="short prompts: a warpgroup's 64 rows, so that wgmma serves them",
    ),
    TileSettings(rows=64, keys=32, warps=4, stages=3, reason="the same by mma.sync"),
    TileSettings(rows=64, keys=32, warps=8, stages=2, reason="the same, for wide heads"),
    TileSettings(
        rows=128, keys=64, warps=8, stages=3,
        reason="prefill: two warpgroups, each block of keys serves 128 rows",
    ),
    TileSettings(rows=128, keys=32, warps=8, stages=3, reason="prefill by mma.sync"),
    TileSettings(rows=128, keys=32, warps=8, stages=2, reason="prefill of wide heads by wgmma"),
)  # fmt: skip
#: float32 has no tensor cores here, and operands of its products lie in registers.
FLOAT32 = TileSettings(
    rows=16, keys=16, warps=4, stages=1, reason="products by FMA: 94 registers, 32 rows spill"
)


def power_of_two(size: int, least: int = _LEAST) -> int:
    """The next one, as blocks have it; at least what a product takes."""
    return max(least, 1 << (size - 1).bit_length())


class Tiles:
    """The tiles that fit a problem's GPU, of which batches take one each."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        is_exact = problem.q_dtype == "float32"
        self._legal = [FLOAT32] if is_exact else [tile for tile in TILES if tile.is_legal(problem)]

    def best(self, max_qo_len: int | None) -> TileSettings:
        """The tile for requests of up to ``max_qo_len`` queries, None being unknown."""
        # What is deterministic may not depend on the batch, so nor may the tile.
        is_open = self._problem.deterministic or max_qo_len is None
        wanted = (_QUERIES_OF_ANY if is_open else max_qo_len or 1) * self._problem.group_size
        enough = [tile for tile in self._legal if tile.rows >= wanted]
        # Of equals, min and max take the first.
        return min(enough, key=_rows) if enough else max(self._legal, key=_rows)

    def shares(self, tile: TileSettings, *, batch: int, tokens: int, max_kv_len: int | None) -> int:
        """Into how many shares the keys of each tile are cut, so that few tiles fill the GPU.

        What shares leave behind is bounded by that: as many rows as the wanted programs have, some
        20 MB.
        """
        problem = self._problem
        if problem.deterministic or not problem.variant.softmax:
            return 1
        tiles = max(batch, tokens * problem.group_size // tile.rows, 1)
        wanted = _PROGRAMS_OF_SM * problem.device.num_sms // (tiles * problem.num_kv_heads)
        most = _MOST_SHARES if max_kv_len is None else -(-max_kv_len // _LEAST_KEYS_OF_SHARE)
        return max(1, min(wanted, most, _MOST_SHARES))


def _rows(tile: TileSettings) -> int:
    return tile.rows
