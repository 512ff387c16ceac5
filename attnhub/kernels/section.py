"""How a kernel tiles the requests of a batch, as its host side states it."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnhub.errors import InvalidArgument
from attnhub.jit import ParamLayout
from attnhub.kernels.fastdiv import FAST_DIV, fast_divisor

__all__ = ["SECTION", "Section"]

#: ``attnhub::Section`` as a member of a kernel's parameters.
SECTION = ParamLayout(
    {
        "num_workers": "i32",
        "num_heads": "i32",
        "min_qo_len": "i32",
        "max_qo_len": "i32",
        "tile_tokens": "i32",
        "tile_cost": "i32",
        "min_piece": "i32",
        "is_fixed": "i32",
        "max_pieces": "i32",
        "num_slots": "i32",
        "window": ParamLayout({"left": "i32", "right": "i32"}),
        "tiles": FAST_DIV,
        "blocks": FAST_DIV,
        "per_worker": "double",
    }
)
_MAX_INT = 2**31 - 1
_MAX_SLOTS = 2**30 - 2  # plan.cuh counts no further
_MAX_WORKERS = 2**20  # cuts.cuh divides exactly up to there


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One way of tiling, for the requests that have as many queries as it takes.

    Queries of all heads that share a KV head are packed into the rows of a tile, ``tile_tokens``
    queries of each. A tile costs ``tile_cost`` and one for each key that it sees; the sum over all
    tiles is cut evenly over the workers.

    Args:
        num_workers: persistent CTAs, or groups of CTAs that walk the same keys.
        tile_tokens: queries of a tile.
        tile_cost: what a visit costs beside the keys, in keys.
        kv_block: tiles are cut at multiples of it.
        min_piece: no piece is shorter, in keys; a multiple of ``kv_block``, which is the default.
        num_heads: KV heads that workers share out; 1 if each CTA of a group has its own.
        num_lanes: CTAs of a group: of each counter there is one for each.
        min_qo_len: only requests with as many queries or more.
        max_qo_len: only requests with as many queries or fewer.
        window: keys before and after its own position that a query sees, -1 for all; causal
            attention is ``(-1, 0)``.
        split_len: above 0, tiles are cut at every multiple of it and nowhere else, so that results
            do not depend on what else is in the batch. Beyond all lengths, tiles stay whole.
        fixed_slots: room for partial results where ``split_len`` is given, as ``slots_for`` says.
            Requests that find none left are not cut.

    Raises:
        InvalidArgument: a value out of its range.
    """

    num_workers: int
    tile_tokens: int
    tile_cost: int
    kv_block: int
    min_piece: int = 0
    num_heads: int = 1
    num_lanes: int = 1
    min_qo_len: int = 1
    max_qo_len: int = _MAX_INT
    window: tuple[int, int] = (-1, -1)
    split_len: int = 0
    fixed_slots: int = 0
    _values: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        least = dict.fromkeys(("min_piece", "split_len", "fixed_slots"), 0)
        least |= dict.fromkeys(
            "num_workers tile_tokens tile_cost kv_block num_heads num_lanes min_qo_len "
            "max_qo_len".split(),
            1,
        )
        most = {"num_workers": _MAX_WORKERS, "fixed_slots": _MAX_SLOTS}
        for name, low in least.items():
            value, high = getattr(self, name), most.get(name, _MAX_INT)
            if not low <= value <= high:
                raise InvalidArgument(f"{name}={value}: give {low} to {high}")
        for name in ("min_piece", "split_len"):
            value = getattr(self, name)
            if value % self.kv_block:
                raise InvalidArgument(
                    f"{name}={value}: give a multiple of kv_block={self.kv_block}, as tiles are "
                    "cut between blocks"
                )
        if not all(-1 <= side <= _MAX_INT for side in self.window):
            raise InvalidArgument(f"window={self.window}: give numbers of keys, or -1 for all")
        object.__setattr__(self, "_values", self._pack())

    @property
    def num_slots(self) -> int:
        """Slots for partial results, each of one tile of a lane."""
        return self.fixed_slots if self.split_len else 2 * self.num_workers

    @property
    def num_counters(self) -> int:
        """Counters of the tiles that are cut."""
        return -(-self.num_slots // 2) * self.num_lanes

    def slots_for(self, *, batch: int, kv_tokens: int, max_qo_len: int) -> int:
        """What ``fixed_slots`` must be at least for any batch within these bounds.

        A request of ``n`` keys is cut if these are more than ``split_len``, and each of its tiles
        then has ``ceil(n / split_len)`` slots: less than ``n / split_len + 1``, and at most twice
        ``n / split_len``. So the host needs no lengths: all pages of a batch times the size of a
        page bound ``kv_tokens``.

        Args:
            batch: requests.
            kv_tokens: keys of all requests together.
            max_qo_len: queries of the longest request.
        """
        if not self.split_len:
            return 0
        tiles = -(-min(max_qo_len, self.max_qo_len) // self.tile_tokens) * self.num_heads
        whole = kv_tokens // self.split_len
        of_tiles = min(2 * kv_tokens // self.split_len, whole + batch, batch * self._max_pieces)
        return tiles * of_tiles

    @property
    def _max_pieces(self) -> int:
        """The most pieces of a tile at fixed cuts, however many keys there are."""
        if -1 in self.window:
            return _MAX_INT
        seen = self.tile_tokens + sum(self.window)  # wherever these begin
        return min((seen + 2 * self.split_len - 2) // max(self.split_len, 1), _MAX_INT)

    def values(self) -> tuple[float, ...]:
        """The values of :data:`SECTION`."""
        return self._values

    def _pack(self) -> tuple[float, ...]:
        is_fixed = self.split_len > 0
        return (
            self.num_workers,
            self.num_heads,
            self.min_qo_len,
            self.max_qo_len,
            self.tile_tokens,
            self.tile_cost,
            1 if is_fixed else self.min_piece or self.kv_block,
            int(is_fixed),
            self._max_pieces,
            self.num_slots,
            *self.window,
            *fast_divisor(self.tile_tokens),
            *fast_divisor(self.split_len or self.kv_block),
            1 / self.num_workers,
        )
