"""The tile shapes of the attention kernel, each with the reason for its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_PANEL_BYTES = 128  # rows in shared memory are whole panels
_ALIGNMENT = 1024
_ROW_BYTES = 16  # of TileRow
_PADDING_FLOATS = 4  # of a row of Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How wide rows are: elements of a head, and bytes of an element of K and V."""

    dim_qk: int = 128
    dim_vo: int = 128
    kv_bytes: int = 2

    def row_bytes(self, dim: int, element: int = 2) -> int:
        """Of a row in shared memory."""
        return -(-dim * element // _PANEL_BYTES) * _PANEL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A row of the table: the arguments of ``TileShape``, and how work is shared out.

    ``ctas_per_sm`` is what an SM is to hold. A visit to a tile costs as much as ``tile_cost`` keys
    beside those it sees, and no piece of a tile is shorter than ``min_piece`` keys.
    """

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

    def smem(self, form: Format) -> int:
        """Bytes of ``SmemPlan``; the template asserts it."""
        query = max(form.row_bytes(form.dim_qk), form.row_bytes(form.dim_vo)) * self.rows
        keys, values = (
            form.row_bytes(dim, form.kv_bytes) * self.block_n * self.stages
            for dim in (form.dim_qk, form.dim_vo)
        )
        shared_rows = 1 if self.warps_n == 1 else self.warps_n * self.rows
        exchange = shared_rows * (form.dim_vo + _PADDING_FLOATS + 2) * 4
        union = _aligned(max(query + keys + values, exchange))
        return _aligned(union + self.rows * _ROW_BYTES + 4)

    def fits(self, form: Format, smem_kb: int) -> bool:
        """Whether an SM with so much memory holds the CTAs, each of which costs 1 KB more."""
        return self.ctas_per_sm * (self.smem(form) + 1024) <= smem_kb * 1024


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


_PREFILL = Tile(
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
_SHORT = replace(
    _PREFILL,
    block_n=32,
    measured_on="",
    reason="two CTAs where blocks of 64 keys leave room for one",
)
_ONE_CTA = replace(
    _PREFILL,
    ctas_per_sm=1,
    measured_on="",
    reason="what 100 KB hold: 128 rows, two stages of 64 keys",
)
_WIDE = replace(
    _SHORT,
    tiles_m=1,
    reason="outputs of more than 128 channels leave registers for 16 rows a warp",
)

_NARROW_SM = replace(_WIDE, ctas_per_sm=1, reason="what 100 KB hold")

#: Prefill up to 128 channels of output, in order of preference; the last one fits every GPU.
PREFILL = (_PREFILL, _SHORT, _ONE_CTA, replace(_SHORT, ctas_per_sm=1), _NARROW_SM)
#: And beyond.
WIDE_PREFILL = (_WIDE, _NARROW_SM)

_DECODE = Tile(
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

#: Of few rows, where keys are what takes time; in order of preference.
DECODE = (
    replace(
        _DECODE,
        stages=4,
        ctas_per_sm=3,
        reason="rows of 128 bytes, as those of FP8: three CTAs, as the products take longer",
    ),
    _DECODE,
    replace(_DECODE, stages=2, measured_on="", reason="two CTAs in the 164 KB of an A100's SM"),
    replace(_DECODE, stages=2, ctas_per_sm=1, measured_on="", reason="what 100 KB hold"),
    replace(
        _DECODE,
        warps_n=2,
        block_n=32,
        stages=2,
        ctas_per_sm=1,
        measured_on="",
        reason="what 100 KB hold of rows of 512 bytes",
    ),
)


def prefill(form: Format, smem_kb: int) -> Tile:
    """The tile of requests with more rows."""
    return _choose(PREFILL if form.dim_vo <= 128 else WIDE_PREFILL, form, smem_kb)


def decode(form: Format, smem_kb: int) -> Tile:
    """The tile of requests whose rows fit in it whole."""
    return _choose(DECODE, form, smem_kb)


def _choose(tiles: Sequence[Tile], form: Format, smem_kb: int) -> Tile:
    """The first that fits; the last one does on every GPU."""
    return next(tile for tile in tiles if tile.fits(form, smem_kb))
