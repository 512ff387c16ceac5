"""Tensors of shape ``[..., n]`` as rows: where each row starts, for any strides.

A kernel finds its row by two strides, ``row // inner * outer_stride + row % inner * inner_stride``.
Leading dimensions that lie as one (those of every contiguous tensor do) have ``inner`` 1, which
Triton compiles in, so that they cost no division. More levels than two are launched one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Rows(NamedTuple):
    """Rows of one or more tensors of the same leading shape.

    ``strides`` has two numbers for each tensor, outer and inner.
    """

    total: int
    inner: int
    strides: tuple[int, ...]


def rows(*tensors: Tensor) -> list[tuple[tuple[Tensor, ...], Rows]]:
    """The parts of ``tensors`` that one launch serves, with their rows; most often one part."""
    first = tensors[0]
    if first.dim() == 2:  # most calls: there is nothing to merge
        strides = [stride for tensor in tensors for stride in (tensor.stride(0), 0)]
        return [(tensors, Rows(first.shape[0], 1, tuple(strides)))]
    levels = _levels(*tensors)
    if len(levels) > 2:
        parts = zip(*(tensor.unbind(0) for tensor in tensors), strict=True)
        return [found for part in parts for found in rows(*part)]
    (outer, *outer_strides), (inner, *inner_strides) = _two(levels, len(tensors))
    pairs = zip(outer_strides, inner_strides, strict=True)
    strides = [stride for pair in pairs for stride in pair]
    return [(tensors, Rows(outer * inner, inner, tuple(strides)))]


def _levels(*tensors: Tensor) -> list[tuple[int, ...]]:
    """Size and strides of leading dimensions, outermost first, those that lie as one merged."""
    levels: list[tuple[int, ...]] = []
    for dim, size in enumerate(tensors[0].shape[:-1]):
        strides = [tensor.stride(dim) for tensor in tensors]
        if size == 1:
            continue
        steps = zip(levels[-1][1:], strides, strict=True) if levels else ()
        if levels and all(up == size * here for up, here in steps):
            levels[-1] = (levels[-1][0] * size, *strides)
        else:
            levels.append((size, *strides))
    return levels


def _two(levels: list[tuple[int, ...]], tensors: int) -> list[tuple[int, ...]]:
    one = (1, *[0] * tensors)
    return [*levels, one, one][:2]


@triton.jit
def row_offset(row, inner, outer_stride, inner_stride):
    """Where a row starts: ``row`` is int64, so that strides may be of any size."""
    return row // inner * outer_stride + row % inner * inner_stride


@triton.jit
def load_wide(pointers, mask):
    """The values as float32; 0 where ``mask`` is false."""
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rounded(pointers, values, mask):
    """Write float32 values where ``mask`` is true, rounded to what the pointers point to."""
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)
