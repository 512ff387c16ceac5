"""The tile shapes of the attention kernel, each with the reason for its numbers."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 128
_ELEMENT_BYTES = 2
_PADDED_ROW_FLOATS = HEAD_DIM + 4
_ALIGNMENT = 1024


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
        q = self.rows * HEAD_DIM * _ELEMENT_BYTES
        ring = 2 * self.stages * self.block_n * HEAD_DIM * _ELEMENT_BYTES
        exchange = self.warps_n * self.rows * (_PADDED_ROW_FLOATS + 2) * 4
        scales = self.rows * 4
        whole = q + -(-max(ring, exchange) // _ALIGNMENT) * _ALIGNMENT + scales + 4
        return -(-whole // _ALIGNMENT) * _ALIGNMENT


PREFILL = Tile(
    name="prefill",
    tiles_m=2,
    warps_m=4,
    warps_n=1,
    block_n=64,
    stages=2,
    ctas_per_sm=2,
    tile_cost=128,
    min_piece=256,
    reason="32 rows a warp, since shared memory cannot feed 16: what ldmatrix reads then serves four "
    "products. Two CTAs an SM, as one computes its softmax while the other multiplies",
)
DECODE = Tile(
    name="decode",
    tiles_m=1,
    warps_m=1,
    warps_n=4,
    block_n=64,
    stages=3,
    ctas_per_sm=2,
    tile_cost=64,
    min_piece=64,
    reason="the fewest rows that a product has; 64 KB of keys and values in flight for each CTA",
)
