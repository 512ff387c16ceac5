"""Where rows start, for strides of every kind; offsets by arithmetic alone, without the memory."""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub_triton_misc.rows import row_offset, rows


def starts(count: int, inner: int, outer_stride: int, inner_stride: int) -> list[int]:
    """By the rule of the module's docstring."""
    return [row // inner * outer_stride + row % inner * inner_stride for row in range(count)]


def expected(x: Tensor) -> list[int]:
    """The offset of each row, index by index."""
    indices = itertools.product(*(range(size) for size in x.shape[:-1]))
    strides = x.stride()[:-1]
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


def meta(shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(shape, strides, device="meta")


@pytest.mark.parametrize(
    ("x", "inner"),
    [
        pytest.param(meta((8,), (1,)), 1, id="one-row"),
        pytest.param(meta((0, 8), (8, 1)), 1, id="no-rows"),
        pytest.param(meta((5, 8), (24, 1)), 1, id="rows-with-gaps"),
        pytest.param(meta((2, 3, 8), (24, 8, 1)), 1, id="contiguous-is-one-level"),
        pytest.param(meta((2, 1, 3, 8), (24, 7, 8, 1)), 1, id="size-1-has-no-say"),
        pytest.param(meta((2, 3, 4, 8), (999, 32, 8, 1)), 12, id="inner-two-lie-as-one"),
        pytest.param(meta((2, 3, 8), (8, 16, 1)), 3, id="transposed"),
        pytest.param(meta((4, 3, 8), (0, 8, 1)), 3, id="expanded"),
        pytest.param(meta((2, 3, 8), (1 << 33, 1 << 32, 1)), 3, id="beyond-32-bits"),
    ],
)
def test_one_part_holds_every_row(x: Tensor, inner: int) -> None:
    [((part,), found)] = rows(x)
    assert part is x
    assert found.total == x.shape[:-1].numel()
    assert starts(found.total, found.inner, *found.strides) == expected(x)
    if found.total:
        assert found.inner == inner


def test_levels_merge_only_where_they_do_in_every_tensor() -> None:
    x, y = meta((2, 3, 8), (24, 8, 1)), meta((2, 3, 8), (48, 8, 1))
    [(tensors, found)] = rows(x, y)
    assert tensors == (x, y)
    assert found.inner == 3
    assert starts(6, 3, *found.strides[:2]) == expected(x)
    assert starts(6, 3, *found.strides[2:]) == expected(y)


def test_three_levels_are_parts_one_by_one() -> None:
    x = torch.arange(2 * 3 * 4 * 8).view(4, 3, 2, 8).transpose(0, 2)
    parts = rows(x)
    assert len(parts) == 2
    firsts = [
        part.as_strided((1,), (1,), part.storage_offset() + start).item()
        for (part,), found in parts
        for start in starts(found.total, found.inner, *found.strides)
    ]
    assert firsts == x[..., 0].flatten().tolist()


@triton.jit
def _offsets(row_ptr, out_ptr, inner, outer_stride, inner_stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, row_offset(tl.load(row_ptr + at), inner, outer_stride, inner_stride))


@pytest.mark.parametrize(
    ("inner", "outer_stride", "inner_stride"),
    [
        pytest.param(1, 4096, 0, id="product-passes"),
        pytest.param(3, 3 << 31, 1 << 31, id="strides-pass"),
        pytest.param(1 << 20, 5, 1 << 30, id="inner-part-passes"),
    ],
)
def test_offsets_pass_2_to_the_31(
    inner: int, outer_stride: int, inner_stride: int, device: torch.device
) -> None:
    row = torch.tensor([0, 1, 2, 5, (1 << 20) - 1, 1 << 20, (1 << 31) + 7, (1 << 31) + 8])
    out = torch.empty(8, dtype=torch.int64, device=device)
    _offsets[(1,)](row.to(device), out, inner, outer_stride, inner_stride, BLOCK=8)
    assert out.tolist() == [
        r // inner * outer_stride + r % inner * inner_stride for r in row.tolist()
    ]
