"""The tile shapes of the attention kernel, each with the reason for its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

HEAD_DIM = 128
_ELEMENT_BYTES = 2
_PADDED_ROW_FLOATS = HEAD_DIM + 4
_ALIGNMENT = 1024
_ROW_BYTES = 16  # of TileRow

#: Shared memory of an SM in KB by compute capability (CUDA C++ Programming Guide, technical
#: specifications). A CTA may have all of it but 1 KB, which each CTA costs beside its own.
SMEM_KB = {
    **dict.fromkeys((80, 87), 164),
    **dict.fromkeys((86, 88, 89, 120, 121), 100),
    **dict.fromkeys((90, 100, 103), 228),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A row of the table: the arguments of ``TileShape``, and how work is shared out.

    ``ctas_per_sm`` is what an SM is to hold. A visit to a tile costs as much as ``tile_cost`` keys
    beside those it sees, and no piece of a tile is shorter than ``min_piece`` keys.
    """

    name: str
    tiles_m: int
    warps_m: int
    warps_n: int
    block_n: int
    stages: int
    ctas_per_sm: int
    tile_cost: int
    min_piece: int
    reason: str
    measured_on: str = ""

    @property
    def rows(self) -> int:
        """Packed query rows of a tile."""
        return 16 * self.tiles_m * self.warps_m

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_m * self.warps_n

    @property
    def smem(self) -> int:
        """Bytes of ``SmemPlan``; the template asserts it."""
        operands = (self.rows + 2 * self.stages * self.block_n) * HEAD_DIM * _ELEMENT_BYTES
        exchange = self.warps_n * self.rows * (_PADDED_ROW_FLOATS + 2) * 4
        union = -(-max(operands, exchange) // _ALIGNMENT) * _ALIGNMENT
        return -(-(union + self.rows * _ROW_BYTES + 4) // _ALIGNMENT) * _ALIGNMENT

    def fits(self, sm: int | None) -> bool:
        """Whether an SM of a compute capability holds the CTAs; of an unknown one, the least SM."""
        per_sm = SMEM_KB.get(sm or 0, min(SMEM_KB.values())) * 1024
        return self.ctas_per_sm * (self.smem + 1024) <= per_sm


_PREFILL = Tile(
    name="prefill",
    tiles_m=2,
    warps_m=4,
    warps_n=1,
    block_n=64,
    stages=2,
    ctas_per_sm=2,
    tile_cost=128,
    min_piece=256,
    reason="32 rows a warp, since shared memory cannot feed 16: what ldmatrix reads then "
    "serves four products. Two CTAs, as one computes its softmax while the other multiplies",
    measured_on="H200",
)
_DECODE = Tile(
    name="decode",
    tiles_m=1,
    warps_m=1,
    warps_n=4,
    block_n=64,
    stages=3,
    ctas_per_sm=2,
    tile_cost=64,
    min_piece=64,
    reason="the fewest rows that a product has; 64 KB of keys and values in flight a CTA",
    measured_on="H200",
)

# What SMs with less shared memory run is guessed from what was measured.
_smaller = partial(replace, measured_on="")

#: In order of preference; the last one fits every GPU.
PREFILL = (
    _PREFILL,
    _smaller(
        _PREFILL,
        name="prefill_short_blocks",
        block_n=32,
        reason="two CTAs in the 164 KB of an A100's SM",
    ),
    _smaller(
        _PREFILL,
        name="prefill_one_cta",
        ctas_per_sm=1,
        reason="what 100 KB hold: 128 rows and two stages of 64 keys",
    ),
)
DECODE = (
    _DECODE,
    _smaller(
        _DECODE,
        name="decode_two_stages",
        stages=2,
        reason="two CTAs in the 164 KB of an A100's SM",
    ),
    _smaller(
        _DECODE,
        name="decode_one_cta",
        stages=2,
        ctas_per_sm=1,
        reason="what 100 KB hold",
    ),
)


def choose(tiles: Sequence[Tile], sm: int | None) -> Tile:
    """The first of the tiles that fits a GPU."""
    return next(tile for tile in tiles if tile.fits(sm))
