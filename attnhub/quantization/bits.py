"""Booleans as bits: eight in a byte, in either order; whole, or each segment from a new byte."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.quantization.problem import (
    BitsProblem,
    PackbitsProblem,
    SegmentPackbitsProblem,
    UnpackbitsProblem,
)
from attnhub.quantization.reference import BitOrder


def _problem(cls: type[BitsProblem], bits: Tensor, bitorder: str, **sizes: int) -> BitsProblem:
    extent = Extent(tokens=bits.numel(), **sizes).bucketed()
    return cls(device=devices.describe(bits.device), extent=extent, bitorder=bitorder)


_packbits = FunctionalOp(
    "quantization.packbits",
    "(Tensor x, Tensor(a!) out, str bitorder) -> ()",
    key=lambda x, out, bitorder: (x.device, bucket(x.numel()), bitorder),
    problem=lambda x, out, bitorder: _problem(PackbitsProblem, x, bitorder),
)
_unpackbits = FunctionalOp(
    "quantization.unpackbits",
    "(Tensor packed, Tensor(a!) out, str bitorder) -> ()",
    key=lambda packed, out, bitorder: (out.device, bucket(out.numel()), bitorder),
    problem=lambda packed, out, bitorder: _problem(UnpackbitsProblem, out, bitorder),
)


def _segment_key(x: Tensor, indptr: Tensor, *rest: Any) -> tuple[Any, ...]:
    return x.device, bucket(x.numel()), bucket(indptr.numel() - 1), rest[-1]


def _segment_problem(x: Tensor, indptr: Tensor, *rest: Any) -> BitsProblem:
    return _problem(SegmentPackbitsProblem, x, rest[-1], batch=indptr.numel() - 1)


_segment_packbits = FunctionalOp(
    "quantization.segment_packbits",
    "(Tensor x, Tensor indptr, Tensor(a!) out, Tensor(b!) byte_indptr, str bitorder) -> ()",
    key=_segment_key,
    problem=_segment_problem,
)


def packbits(x: Tensor, *, bitorder: BitOrder = "little", out: Tensor | None = None) -> Tensor:
    """Eight booleans per byte; the last byte is filled up with zeros.

    Args:
        x: bool ``[n]``, contiguous.
        bitorder: ``"little"`` puts the first boolean into bit 0, ``"big"`` into bit 7.
        out: uint8 ``[ceil(n / 8)]``, contiguous, to write to.

    Returns:
        uint8 ``[ceil(n / 8)]`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or an unknown bit order.

    Equivalent PyTorch, for ``n`` a multiple of 8::

        place = 1 << torch.arange(8)
        (x.view(-1, 8) * place).sum(1).to(torch.uint8)

    Example:
        >>> packbits(torch.tensor([True, False, True]))
        tensor([5], dtype=torch.uint8)
    """
    _check_bits(x, bitorder)
    out = _vector(x, -(-x.numel() // 8), torch.uint8, out)
    _packbits(x, out, bitorder)
    return out


def unpackbits(
    packed: Tensor, count: int, *, bitorder: BitOrder = "little", out: Tensor | None = None
) -> Tensor:
    """The first ``count`` booleans that :func:`packbits` put into ``packed``.

    Args:
        packed: uint8 ``[bytes]``, contiguous.
        count: how many booleans; at most ``8 * bytes``.
        bitorder: as in :func:`packbits`.
        out: bool ``[count]``, contiguous, to write to.

    Returns:
        bool ``[count]`` (``out`` if given).

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, fewer bits than asked for, or an
            unknown bit order.

    Example:
        >>> unpackbits(torch.tensor([5], dtype=torch.uint8), 3)
        tensor([ True, False,  True])
    """
    check.is_tensor(packed, "packed")
    if packed.dtype != torch.uint8:
        check.dtype(packed, "packed", (torch.uint8,))
    _check_vector(packed, "packed")
    _check_order(bitorder)
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not 0 <= count <= 8 * packed.numel()
    ):
        check.fail(
            f"count={count}, but packed holds {8 * packed.numel()} bits; give 0 to that many"
        )
    out = _vector(packed, count, torch.bool, out)
    _unpackbits(packed, out, bitorder)
    return out


def segment_packbits(
    x: Tensor, indptr: Tensor, *, bitorder: BitOrder = "little", total_bytes: int | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`packbits` of each segment by itself, so that every one starts at a byte.

    This is how packed attention masks are laid out, a segment for each request. Never synchronises
    with the device.

    Args:
        x: bool ``[indptr[-1]]``, contiguous: the segments one after another.
        indptr: int32 ``[segments + 1]``, where each starts, in elements; on the device of ``x`` or
            on the host.
        bitorder: as in :func:`packbits`.
        total_bytes: size of the packed result. By default it is what the segments need, which only
            the host can see: needed with an ``indptr`` on another device and under torch.compile.
            Bytes past the last segment are 0; on a device, what does not fit is dropped.

    Returns:
        uint8 ``[total_bytes]`` and int32 ``[segments + 1]``: where each segment starts, in bytes.
        Both are on the device of ``x``.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or an unknown bit order; on the host
            also an ``indptr`` that does not cover ``x`` exactly, or too few ``total_bytes``.

    Example:
        >>> segment_packbits(torch.ones(4, dtype=torch.bool), torch.tensor([0, 1, 4]).int())
        (tensor([1, 7], dtype=torch.uint8), tensor([0, 1, 2], dtype=torch.int32))
    """
    _check_bits(x, bitorder)
    metadata.index_tensor(indptr, "indptr", None)
    if indptr.numel() == 0:
        check.fail("indptr is empty, needs [segments + 1] with a leading 0")
    size = _total_bytes(x, indptr, total_bytes)
    if indptr.device != x.device:
        if indptr.device.type != "cpu":
            check.device(indptr, "indptr", x.device, "x")
        indptr = indptr.pin_memory().to(x.device, non_blocking=True)
    out = x.new_empty(size, dtype=torch.uint8)
    byte_indptr = torch.empty_like(indptr)
    _segment_packbits(x, indptr, out, byte_indptr, bitorder)
    return out, byte_indptr


def _total_bytes(x: Tensor, indptr: Tensor, total_bytes: int | None) -> int:
    if total_bytes is not None:
        check.integer(total_bytes, "total_bytes", 0)
    if torch.compiler.is_compiling() or indptr.device.type != "cpu":
        if total_bytes is None:
            check.fail(
                "total_bytes= is needed: how many there are follows from indptr, which cannot be "
                "read under torch.compile, nor from another device without a synchronisation; "
                "(x.numel() + 7 * segments) // 8 always suffices"
            )
        return total_bytes
    starts = metadata.indptr_values(indptr, "indptr")
    if starts[-1] != x.numel():
        check.fail(
            f"x has {x.numel()} elements, but indptr[-1] is {starts[-1]}; indptr must cover x "
            "exactly"
        )
    needed = sum(-(-(end - start) // 8) for start, end in itertools.pairwise(starts))
    if total_bytes is not None and total_bytes < needed:
        check.fail(f"total_bytes={total_bytes}, but the segments need {needed}; give at least that")
    return needed if total_bytes is None else total_bytes


def _check_bits(x: Tensor, bitorder: str) -> None:
    check.is_tensor(x, "x")
    if x.dtype != torch.bool:
        check.fail(f"x has dtype {check.dtype_name(x.dtype)}, needs bool; for example x != 0")
    _check_vector(x, "x")
    _check_order(bitorder)


def _check_order(bitorder: str) -> None:
    if bitorder not in ("little", "big"):
        check.fail(f"bitorder={bitorder!r}; give 'little' or 'big'")


def _check_vector(x: Tensor, name: str) -> None:
    if x.dim() != 1:
        check.fail(f"{name} has shape {list(x.shape)}, needs [n]; call {name}.flatten()")
    if not x.is_contiguous():
        check.fail(f"{name} is not contiguous; call {name}.contiguous()")


def _vector(like: Tensor, size: int, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    if out is None:
        return like.new_empty(size, dtype=dtype)
    check.output(out, "out", (size,), dtype, like, "the input")
    return out
