"""Public bit packing: values, checks, and how it behaves under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnhub
from attnhub.errors import InvalidArgument
from attnhub.quantization import bits, reference, workloads
from attnhub.quantization.reference import BitOrder

ORDERS = st.sampled_from(["little", "big"])
BITS = st.lists(st.booleans(), max_size=40)


def boolean(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@given(values=BITS, bitorder=ORDERS)
def test_pack_and_unpack(values: list[bool], bitorder: BitOrder) -> None:
    x = boolean(*values)
    packed = attnhub.quantization.packbits(x, bitorder=bitorder)
    assert torch.equal(packed, reference.packbits(x, bitorder=bitorder))
    again = attnhub.quantization.unpackbits(packed, len(values), bitorder=bitorder)
    assert again.dtype == torch.bool
    assert again.tolist() == values


def test_out_is_written_and_returned() -> None:
    x = boolean(1, 0, 1, 0, 0, 0, 0, 0, 1)
    out = torch.empty(2, dtype=torch.uint8)
    assert bits.packbits(x, out=out) is out
    assert out.tolist() == [5, 1]
    back = torch.empty(9, dtype=torch.bool)
    assert bits.unpackbits(out, 9, out=back) is back
    assert torch.equal(back, x)


@given(segments=st.lists(BITS, max_size=5), bitorder=ORDERS, padding=st.none() | st.integers(0, 3))
def test_segments(segments: list[list[bool]], bitorder: BitOrder, padding: int | None) -> None:
    x = boolean(*(bit for segment in segments for bit in segment))
    indptr = int32(0, *map(len, segments)).cumsum(0).to(torch.int32)
    each = [reference.packbits(boolean(*s), bitorder=bitorder).tolist() for s in segments]
    wanted = [byte for packed in each for byte in packed]
    total_bytes = None if padding is None else len(wanted) + padding
    packed, starts = attnhub.quantization.segment_packbits(
        x, indptr, bitorder=bitorder, total_bytes=total_bytes
    )
    assert packed.dtype == torch.uint8
    assert packed.tolist() == wanted + [0] * (padding or 0)
    assert starts.dtype == torch.int32
    assert starts.diff().tolist() == [*map(len, each)]
    assert starts[0] == 0


def test_what_does_not_fit_is_dropped_where_values_are_not_read() -> None:
    x, indptr = boolean(*[1] * 20), int32(0, 9, 9, 20)
    packed = torch.empty(3, dtype=torch.uint8)
    starts = torch.empty(4, dtype=torch.int32)
    bits._segment_packbits.overload(x, indptr, packed, starts, "little")
    assert packed.tolist() == [255, 1, 255]
    assert starts.tolist() == [0, 2, 2, 4]


# --- bad input ------------------------------------------------------------------------------------

NOT_BITS = [
    pytest.param(torch.zeros(9, dtype=torch.uint8), "x has dtype uint8, needs bool", id="uint8"),
    pytest.param(
        torch.zeros(3, 3, dtype=torch.bool), r"\[3, 3\], needs \[n\]; call x\.fl", id="2d"
    ),
    pytest.param(torch.zeros(18, dtype=torch.bool)[::2], r"x\.contiguous\(\)", id="stride"),
]


@pytest.mark.parametrize(("x", "message"), NOT_BITS)
def test_other_than_bits_is_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        bits.packbits(x)
    with pytest.raises(InvalidArgument, match=message):
        bits.segment_packbits(x, int32(0, 9))


def test_unknown_order_is_refused() -> None:
    order: Any = "middle"
    message = "bitorder='middle'; give 'little' or 'big'"
    with pytest.raises(InvalidArgument, match=message):
        bits.packbits(boolean(1), bitorder=order)
    with pytest.raises(InvalidArgument, match=message):
        bits.segment_packbits(boolean(1), int32(0, 1), bitorder=order)
    with pytest.raises(InvalidArgument, match=message):
        bits.unpackbits(torch.zeros(1, dtype=torch.uint8), 1, bitorder=order)


@pytest.mark.parametrize(
    ("packed", "count", "message"),
    [
        pytest.param(torch.zeros(2), 3, "packed has dtype float32, needs uint8", id="dtype"),
        pytest.param(torch.zeros(2, 2, dtype=torch.uint8), 3, r"packed\.flatten", id="2d"),
        pytest.param(torch.zeros(4, dtype=torch.uint8)[::2], 3, "not contiguous", id="stride"),
        pytest.param(
            torch.zeros(2, dtype=torch.uint8), 17, "count=17, but packed holds 16", id="17"
        ),
        pytest.param(torch.zeros(2, dtype=torch.uint8), -1, "count=-1", id="negative"),
        pytest.param(torch.zeros(2, dtype=torch.uint8), "3", "count='?3", id="text"),
        pytest.param(torch.zeros(2, dtype=torch.uint8), True, "count=True", id="bool"),
    ],
)
def test_bad_bytes_are_refused(packed: torch.Tensor, count: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        bits.unpackbits(packed, count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t: t.float(), "out has dtype float32, needs", id="dtype"),
        pytest.param(lambda t: t[:-1], r"out has shape \[\d\], needs \[\d\]", id="short"),
        pytest.param(
            lambda t: t.to("meta"), "out is on meta, but the input is on cpu", id="device"
        ),
        pytest.param(lambda t: t.repeat(2)[::2], r"out has stride 2 .*contiguous\(\)", id="stride"),
        pytest.param(lambda t: 3, "out must be a torch.Tensor, got int", id="no-tensor"),
    ],
)
def test_bad_out_is_refused(change: Any, message: str) -> None:
    x, packed = torch.ones(9, dtype=torch.bool), torch.ones(2, dtype=torch.uint8)
    with pytest.raises(InvalidArgument, match=message):
        bits.packbits(x, out=change(packed))
    with pytest.raises(InvalidArgument, match=message):
        bits.unpackbits(packed, 9, out=change(x))


@pytest.mark.parametrize(
    ("indptr", "total_bytes", "message"),
    [
        pytest.param(int32(0, 9).long(), None, r"int64, needs int32; use indptr\.to", id="int64"),
        pytest.param(int32(), None, r"indptr is empty, needs \[segments", id="empty"),
        pytest.param(
            int32(0, 8), None, r"9 elements, but indptr\[-1\] is 8; indptr must", id="short"
        ),
        pytest.param(int32(1, 9), None, r"indptr\[0\] is 1, needs 0", id="start"),
        pytest.param(int32(0, 5, 4, 9), None, "decreases at 2", id="descends"),
        pytest.param(int32(0, 4, 9), 1, "total_bytes=1, but the segments need 2", id="few"),
        pytest.param(int32(0, 9), -1, "total_bytes=-1: needs an integer >= 0", id="negative"),
        pytest.param(int32(0, 9), 2.0, "total_bytes=2.0: needs an integer", id="float"),
        pytest.param(int32(0, 9), True, "total_bytes=True: needs an integer", id="bool"),
        pytest.param(
            int32(0, 9).to("meta"), None, "total_bytes= is needed.*always suffices", id="asks"
        ),
        pytest.param(int32(0, 9).to("meta"), 2, "indptr is on meta, but x is on cpu", id="device"),
    ],
)
def test_bad_segments_are_refused(
    indptr: torch.Tensor, total_bytes: int | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        bits.segment_packbits(torch.ones(9, dtype=torch.bool), indptr, total_bytes=total_bytes)


def test_the_bound_in_the_message_suffices() -> None:
    for lengths in ([1] * 9, [8, 9, 7], [0, 0, 1]):
        indptr = int32(0, *lengths).cumsum(0).to(torch.int32)
        x = torch.ones(int(indptr[-1]), dtype=torch.bool)
        assert bits.segment_packbits(x, indptr)[0].numel() <= (x.numel() + 7 * len(lengths)) // 8


# --- as torch ops ---------------------------------------------------------------------------------

X, PACKED = boolean(*[1, 0, 1] * 5), torch.tensor([5, 77], dtype=torch.uint8)
SAMPLES = [
    pytest.param(bits._packbits, (X, PACKED.clone(), "little"), id="packbits"),
    pytest.param(bits._unpackbits, (PACKED, X.clone(), "big"), id="unpackbits"),
    pytest.param(
        bits._segment_packbits,
        (X, int32(0, 4, 15), torch.empty(3, dtype=torch.uint8), int32(0, 0, 0), "little"),
        id="segment_packbits",
    ),
]


@pytest.mark.parametrize(("op", "args"), SAMPLES)
def test_is_a_well_formed_op(op: Any, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.overload, args)
    op.overload(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        pytest.param("packbits", (X,), {"bitorder": "big"}, id="packbits"),
        pytest.param("unpackbits", (PACKED, 11), {}, id="unpackbits"),
        pytest.param("segment_packbits", (X, int32(0, 4, 15)), {"total_bytes": 4}, id="segments"),
    ],
)
def test_compiles_whole(
    name: str, args: tuple[Any, ...], options: dict[str, Any], dynamic: bool
) -> None:
    function = getattr(bits, name)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    got, wanted = compiled(*args, **options), function(*args, **options)
    if name != "segment_packbits":
        got, wanted = (got,), (wanted,)
    assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["packbits", "unpackbits", "segment_packbits"])
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()


def test_problem_tells_work() -> None:
    decision = attnhub.explain("quantization.segment_packbits", device="h200", batch=4, tokens=800)
    assert "batch <= 4, tokens <= 1024" in str(decision)
    assert "assumed 1048576" in bits.PackbitsProblem.of("cpu", bitorder="big").work().assumed
