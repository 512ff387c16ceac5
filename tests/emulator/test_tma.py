"""Boxes of tensors of one to five dimensions, inside and across the edges, with every swizzle."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from attnhub.testing.emulator import Launch, Misuse, TensorMap
from tests.emulator.specs import spec
from tests.machines import HOPPER_MACHINES, kernel_on

Place = tuple[int, ...]

#: Elements of 16 bytes, of which the innermost coordinate is a multiple.
PIECE = 8


class Case(NamedTuple):
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


#: Where there is a swizzle, rows of a box are as wide as it, and there are 8 of them or more.
CASES = {
    1: Case((104,), (64,), 0),
    2: Case((21, 72), (16, 64), 128),
    3: Case((5, 6, 40), (3, 4, 32), 64),
    4: Case((3, 4, 5, 24), (2, 3, 4, 16), 32),
    5: Case((3, 3, 4, 5, 24), (2, 2, 2, 4, 16), 0),
}


def numbers(shape: tuple[int, ...], first: int) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(first, first + count, dtype=torch.int16).view(shape)


def edges(case: Case) -> dict[str, Place]:
    """Coordinates of boxes, of which the first and the last lie half outside."""
    outer = list(zip(case.shape[:-1], case.box[:-1], strict=True))
    width = case.box[-1]
    return {
        "before": (*(-(n // 2) for _, n in outer), -width // 2),
        "inside": (*(1 for _ in outer), PIECE),
        "behind": (*(size - n // 2 for size, n in outer), case.shape[-1] - width // 2),
    }


def with_margin(x: Tensor, box: tuple[int, ...]) -> Tensor:
    """``x`` between zeros, on each side as many as a box has."""
    return torch.nn.functional.pad(x, [n for n in reversed(box) for _ in range(2)])


def at(place: Place, extents: tuple[int, ...], box: tuple[int, ...]) -> tuple[slice, ...]:
    """Where these coordinates lie in a tensor with margins."""
    triples = zip(place, extents, box, strict=True)
    return tuple(slice(first + n, first + n + extent) for first, extent, n in triples)


def in_smem(box: Tensor, swizzle: int) -> Tensor:
    """A box as TMA lays it: pieces of 16 bytes, which the swizzle moves within lines of 128."""
    pieces = box.clone().view(torch.int32).view(-1, 4)
    index = torch.arange(len(pieces))
    laid = torch.empty_like(pieces)
    laid[index ^ (index >> 3 & max(swizzle // 16 - 1, 0))] = pieces
    return laid.flatten()


def run(machine: str, name: str, case: Case, x: Tensor, y: Tensor, *places: Place) -> Tensor:
    """Runs a kernel from and to these places; what every CTA had in shared memory."""
    num_ctas = 2 if name.startswith("share") else 1
    num_bytes = 2 * torch.Size(case.box).numel()
    boxes = torch.zeros(num_ctas, num_bytes // 4, dtype=torch.int32)
    innermost_first = [torch.tensor(place[::-1], dtype=torch.int32) for place in places]
    kernel_on(machine, spec(f"tma::{name}")).run(
        Launch(grid=(num_ctas,), block=64, cluster=num_ctas, smem=1024 + num_bytes),
        x=TensorMap(tensor=x, box=case.box, swizzle=case.swizzle),
        y=TensorMap(tensor=y, box=case.box, swizzle=case.swizzle, writable=True),
        load_at=innermost_first[0],
        store_at=innermost_first[1],
        boxes=boxes,
        num_bytes=num_bytes,
    )
    return boxes


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("rank", CASES)
@pytest.mark.parametrize("load_edge", ["before", "inside", "behind"])
@pytest.mark.parametrize("store_edge", ["inside", "behind"])
def test_load_and_store(machine: str, rank: int, load_edge: str, store_edge: str) -> None:
    case = CASES[rank]
    load_at, store_at = edges(case)[load_edge], edges(case)[store_edge]
    x, y = numbers(case.shape, 1), numbers(case.shape, -5000)
    box = with_margin(x, case.box)[at(load_at, case.box, case.box)]
    expected = with_margin(y, case.box)
    expected[at(store_at, case.box, case.box)] = box
    boxes = run(machine, f"copy_box<{rank}>", case, x, y, load_at, store_at)
    assert torch.equal(boxes[0], in_smem(box, case.swizzle))
    assert torch.equal(y, expected[at((0,) * rank, case.shape, case.box)])


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("edge", ["inside", "behind"])
def test_multicast(machine: str, rank: int, edge: str) -> None:
    case = CASES[rank]
    place, x = edges(case)[edge], numbers(case.shape, 1)
    box = with_margin(x, case.box)[at(place, case.box, case.box)]
    boxes = run(machine, f"share_box<{rank}>", case, x, x.clone(), place, place)
    assert torch.equal(boxes, in_smem(box, case.swizzle).expand(2, -1))


@pytest.mark.parametrize("shift", [1, 4, -1])
@pytest.mark.parametrize("rank", CASES)
@pytest.mark.parametrize("which", ["loads", "stores"])
def test_finds_misaligned_places(rank: int, which: str, shift: int) -> None:
    case = CASES[rank]
    aligned = edges(case)["inside"]
    shifted = (*aligned[:-1], aligned[-1] + shift)
    places = (shifted, aligned) if which == "loads" else (aligned, shifted)
    x = numbers(case.shape, 1)
    text = f"{which} a box at innermost coordinate {shifted[-1]}, byte {2 * shifted[-1]} of"
    with pytest.raises(Misuse, match=text):
        run("emulator", f"copy_box<{rank}>", case, x, x.clone(), *places)


@pytest.mark.parametrize(("rank", "dimension"), [(rank, i) for rank in CASES for i in range(rank)])
def test_finds_stores_before_a_tensor(rank: int, dimension: int) -> None:
    case = CASES[rank]
    inside = edges(case)["inside"]
    before = [*inside]
    before[rank - 1 - dimension] = -PIECE
    x = numbers(case.shape, 1)
    text = f"stores a box at coordinate -{PIECE} of dimension {dimension}: only loads may"
    with pytest.raises(Misuse, match=text):
        run("emulator", f"copy_box<{rank}>", case, x, x.clone(), inside, tuple(before))
