"""Launch settings: what each size is launched with, and why.

A setting is legal if a kernel can be launched with it and its tile fits into the registers of its
threads (:meth:`RowSettings.is_legal`); the tests walk every row of the tables. What a GPU was
measured to do better by comes before them: :mod:`attnhub_triton_misc.tuned`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

#: Of float32 values that a thread holds; beyond it, values spill to memory.
_VALUES_OF_THREAD = 64
_THREADS_OF_WARP = 32
_WARPS_OF_PROGRAM = 32
_REGISTERS_OF_SM = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """A tile of ``rows`` x ``block`` elements for ``warps`` warps.

    ``block`` is a power of two. Rows that are longer are passed over in steps of it. A thread gets
    no more than ``registers``, where that makes room for another program on the SM.
    """

    rows: int
    block: int
    warps: int
    registers: int | None = None
    reason: str = field(compare=False)

    #: What of it a measurement may choose.
    CHOSEN: ClassVar = ("rows", "block", "warps")

    def is_legal(self) -> bool:
        """Whether a kernel can be launched with it, and the tile fits into registers."""
        return (
            _are_powers_of_2(self.rows, self.block, self.warps)
            and (self.registers or 0) * self.warps * _THREADS_OF_WARP <= _REGISTERS_OF_SM
            and _fits(self.rows * self.block, self.warps)
        )

    def cut_for(self, columns: int) -> RowSettings:
        """This tile for rows that may be shorter: as many of them as it has room for."""
        block = min(_power_of_2(columns), self.block)
        return replace(self, rows=self.rows * self.block // block, block=block)


def _fits(values: int, warps: int) -> bool:
    """Whether so many values fit into the registers of a program of so many warps."""
    return warps <= _WARPS_OF_PROGRAM and values <= warps * _THREADS_OF_WARP * _VALUES_OF_THREAD


def _are_powers_of_2(*sizes: Any) -> bool:
    """Whether all are; what a file holds may be no integers at all."""
    return all(type(size) is int and size > 0 and size & (size - 1) == 0 for size in sizes)


def _power_of_2(size: int) -> int:
    """The least power of 2 that is not below ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def _power_of_2_in(size: int) -> int:
    """The largest power of 2 that is not above ``size``; 1 for 0."""
    return 1 << max(size.bit_length() - 1, 0)


#: Tiles for whole rows; the first that a row fits into counts.
WHOLE_ROWS = (
    RowSettings(rows=1, block=2048, warps=4, reason="two 16-byte loads a thread; short rows share"),
    RowSettings(rows=1, block=4096, warps=8, reason="as many loads a thread, the SM half full"),
    RowSettings(rows=1, block=8192, warps=8, reason="four loads a thread, three programs an SM"),
    RowSettings(
        rows=1,
        block=16384,
        warps=8,
        registers=128,
        reason="64 values a thread, the most there is room for; with more than 128 registers an SM "
        "would take one program, and nothing would load while it stores",
    ),
)
#: For rows longer than all of these, which pass twice: the second time they come from L2.
STEPS = RowSettings(rows=1, block=8192, warps=8, reason="three programs an SM: 48 KB on their way")


def whole_row(hidden: int) -> RowSettings:
    """A tile that holds whole rows of ``hidden`` elements, or a step of one too long for that.

    A reduction then needs the row once, whose elements stay in registers between the sum and the
    product.
    """
    for tile in WHOLE_ROWS:
        if hidden <= tile.block:
            return tile.cut_for(hidden)
    return STEPS


#: Elements of so few large tiles that most SMs would have none: these make small ones.
FEW = 8 * 2048
SMALL_STREAM = RowSettings(rows=1, block=256, warps=1, reason="one 16-byte load a thread and input")
STREAM = RowSettings(
    rows=1,
    block=2048,
    warps=8,
    reason="a 16-byte load a thread and input; of two, 8 programs an SM wait for 64 KB. By four "
    "warps 128 tokens of silu took an H200 2.8 us instead of 2.5, and many as long",
)


def streamed(rows: int | None, columns: int) -> RowSettings:
    """A tile for what meets each of ``rows`` x ``columns`` elements once; None is not known."""
    few = rows is not None and rows * columns <= FEW
    return (SMALL_STREAM if few else STREAM).cut_for(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """A tile of ``states`` states of ``rows`` rows of ``block`` elements for ``warps`` warps.

    All are powers of two. More states, and longer rows, pass in steps.
    """

    states: int
    rows: int
    block: int
    warps: int
    reason: str = field(compare=False)

    CHOSEN: ClassVar = ("states", "rows", "block", "warps")

    def is_legal(self) -> bool:
        """As that of rows; the sums take as many registers as the values."""
        return _are_powers_of_2(self.states, self.rows, self.block, self.warps) and _fits(
            2 * self.states * self.rows * self.block, self.warps
        )


#: Up to so many rows have a program each, which asks for as many states at once as there is room
#: for: four programs of 8 warps on each of 132 SMs. More rows have smaller tiles, of which nine
#: programs fit on an SM, and share them as far as these remain enough.
FEW_MERGED, ROOM_OF_FEW = 512, 8192
ENOUGH_MERGES, ROOM_OF_MANY = 1024, 2048
#: Values that a thread takes before another warp is added: two 16-byte loads.
MERGED_VALUES = 16


def merged(states: int, heads: int, dim: int, rows: int | None) -> MergeSettings:
    """A tile for merges of ``states`` states, of ``rows`` rows in all; None is not known."""
    few = rows is not None and rows <= FEW_MERGED
    room = ROOM_OF_FEW if few else ROOM_OF_MANY
    spread = 1 if few else _power_of_2_in(heads if rows is None else rows // ENOUGH_MERGES)
    block = min(_power_of_2(dim), room)
    warp = _THREADS_OF_WARP * MERGED_VALUES
    share = warp // (min(_power_of_2(states), room // block) * block)
    together = min(max(share, spread, 1), _power_of_2(heads), room // block)
    group = min(_power_of_2(states), room // (block * together))
    return MergeSettings(
        states=group,
        rows=together,
        block=block,
        warps=min(max(group * together * block // warp, 1), 8 if few else 4),
        reason="few rows: each has a program, for as many states at once as fit"
        if few
        else "many rows: several share a program, as long as programs fill the GPU",
    )


#: For what has a number for each token or request.
EACH = RowSettings(
    rows=1,
    block=128,
    warps=4,
    reason="chains of loads, whose latency counts: spread over the SMs, one number a thread",
)
#: Bytes of each tensor in a tile that is only moved.
COPIED_BYTES = 4096


def copied(width: int, itemsize: int) -> RowSettings:
    """A tile of two tensors that are moved as they are, of ``width`` elements for each token."""
    tile = RowSettings(
        rows=1,
        block=COPIED_BYTES // itemsize,
        warps=2,
        reason="four 16-byte loads a thread and tensor, which wait for the place they go to: 18 "
        "programs an SM have 144 KB on their way",
    )
    return tile.cut_for(width)


#: For bytes of eight booleans each.
BYTES = RowSettings(
    rows=1,
    block=1024,
    warps=4,
    reason="eight bytes a thread, for 64 booleans: as many bytes on their way as in a copy",
)


#: For FP8 with scales, of few elements.
FEW_SCALED = RowSettings(rows=1, block=1024, warps=4, reason="one 16-byte load a thread")


def scaled(rows: int | None, columns: int) -> RowSettings:
    """As :func:`streamed`, for what computes more: a program of one warp has too little to do."""
    few = rows is not None and rows * columns <= FEW
    return (FEW_SCALED if few else STREAM).cut_for(columns)


#: For a maximum over more than a tile, in shares of it.
MAXIMA = RowSettings(
    rows=1,
    block=4096,
    warps=4,
    reason="four 16-byte loads a thread, eight programs an SM: 64 KB on their way in each",
)
COLUMN_MAXIMA = RowSettings(
    rows=32, block=128, warps=4, reason="as many; a row of the tile fills a line of 16-bit values"
)
#: Of a maximum: eight programs on each of 132 SMs, and so few that joining them takes one more.
SHARES = 1024
JOINED = RowSettings(rows=8, block=256, warps=4, reason="eight maxima of 256 shares, or in steps")


#: Of a grid's second axis.
_MOST_PROGRAMS = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """Steps of ``heads`` heads of a token for ``warps`` warps; ``programs`` share these steps.

    ``heads`` is a power of two, and so is the room that ``dim`` elements have.
    """

    heads: int
    dim: int
    programs: int
    warps: int
    reason: str = field(compare=False)

    CHOSEN: ClassVar = ("heads", "programs", "warps")

    def is_legal(self) -> bool:
        """As that of rows, of a step."""
        return (
            _are_powers_of_2(self.heads, self.warps)
            and type(self.programs) is int
            and 0 < self.programs <= _MOST_PROGRAMS
            and _fits(self.heads * _power_of_2(self.dim), self.warps)
        )


#: Elements of a step of a warp: 32 values a thread, in four 16-byte loads.
STEP_OF_HEADS = 1024
#: Warps of a program where tokens fill the GPU: an H200 turned at 3.9 TB/s by two, 3.8 by one.
WARPS_OF_MANY = 2
#: Programs of one warp that fill the GPU: 32 on each of 132 SMs.
FULL = 4096


def heads_of_token(counts: tuple[int, ...], dim: int, tokens: int | None) -> HeadSettings:
    """Steps through a token's heads, ``counts`` of each tensor, of up to ``dim``."""
    room, most = _power_of_2(dim), _power_of_2(max(counts))
    is_full = tokens is not None and 2 * tokens > FULL
    step = STEP_OF_HEADS * (WARPS_OF_MANY if is_full else 1)
    heads = min(max(step // room, 1), most)
    steps = sum(-(-count // heads) for count in counts)
    programs = max(min(FULL // max(tokens or 1, 1), steps), 1)
    return HeadSettings(
        heads=heads,
        dim=dim,
        programs=programs,
        warps=max(heads * room // STEP_OF_HEADS, 1),
        reason="tokens fill the GPU, so each has one program, which has its angles once"
        if programs == 1
        else "few tokens, whose heads are spread over the GPU",
    )
