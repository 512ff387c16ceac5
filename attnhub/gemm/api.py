"""Matrix products of grouped rows, as adapters and experts need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.gemm.problem import SegmentGemmProblem


def _key(
    x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor | None, out: Tensor, *rest: Any
) -> tuple[Any, ...]:
    return (
        x.device,
        x.dtype,
        bucket(x.shape[0]),
        bucket(indptr.shape[0] - 1),
        weights.shape[1:],
        indices is None,
        x.is_contiguous() and weights.is_contiguous() and out.is_contiguous(),
        rest,
    )


def _problem(
    x: Tensor,
    weights: Tensor,
    indptr: Tensor,
    indices: Tensor | None,
    out: Tensor,
    transposed: bool,  # noqa: FBT001 - the op's schema has no keywords
) -> SegmentGemmProblem:
    return SegmentGemmProblem(
        device=devices.describe(x.device),
        extent=Extent(batch=indptr.shape[0] - 1, tokens=x.shape[0]).bucketed(),
        dtype=check.dtype_name(x.dtype),
        k=x.shape[1],
        n=out.shape[1],
        transposed=transposed,
        indexed=indices is not None,
        contiguous=x.is_contiguous() and weights.is_contiguous() and out.is_contiguous(),
    )


_segment_gemm = FunctionalOp(
    "gemm.segment_gemm",
    "(Tensor x, Tensor weights, Tensor seg_indptr, Tensor? weight_indices, Tensor(a!) out, "
    "bool transposed) -> ()",
    key=_key,
    problem=_problem,
)


def segment_gemm(
    x: Tensor,
    weights: Tensor,
    seg_indptr: Tensor,
    *,
    weight_indices: Tensor | None = None,
    transposed: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Each segment of rows times its own matrix, summed in float32.

    Args:
        x: ``[rows, k]``, float16, bfloat16 or float32; rows may be strided.
        weights: ``[num_weights, k, n]``, or ``[num_weights, n, k]`` if transposed; dtype of ``x``,
            contiguous last dimension.
        seg_indptr: int32 ``[segments + 1]`` on the device of ``x``: segment i has the rows
            ``seg_indptr[i]:seg_indptr[i + 1]``; empty ones are fine.
        weight_indices: int32 ``[segments]``, the matrix of each segment; if None, segment i takes
            matrix i.
        transposed: the axes of ``weights``, see there.
        out: ``[rows, n]`` to write to; what it held does not matter, NaN included. It must not
            overlap an input.

    Returns:
        ``[rows, n]`` in the dtype of ``x`` (``out`` if given); zero in rows from
        ``seg_indptr[-1]`` on, which no segment covers.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride; index values out of range, where they
            lie on the host (on a device they are not read).

    Equivalent PyTorch::

        out = torch.zeros(len(x), n)
        for i, (start, end) in enumerate(zip(seg_indptr, seg_indptr[1:])):
            out[start:end] = x[start:end] @ weights[weight_indices[i]]

    Source: Chen et al., "Punica: Multi-Tenant LoRA Serving" (2023).

    Example::

        y = segment_gemm(x, adapters, seg_indptr, weight_indices=adapter_of_request)
    """
    check.is_tensor(x, "x")
    check.is_tensor(weights, "weights")
    if x.dtype not in check.FLOATS:
        check.dtype(x, "x", check.FLOATS)
    if x.dim() != 2 or not x.shape[1]:
        check.fail(f"x has shape {list(x.shape)}, needs [rows, k] with k >= 1")
    check.last_contiguous(x, "x")
    check.no_grad(x, weights)
    rows, k = x.shape
    n = _check_weights(weights, x, k, transposed=transposed)
    _check_segments(seg_indptr, weight_indices, x, weights.shape[0])
    if out is None:
        out = x.new_empty(rows, n)
    else:
        check.output(out, "out", (rows, n), x.dtype, x, "x")
    _segment_gemm(x, weights, seg_indptr, weight_indices, out, transposed)
    return out


def _check_weights(weights: Tensor, x: Tensor, k: int, *, transposed: bool) -> int:
    """Check the matrices against ``x``; their n."""
    if weights.dtype != x.dtype:
        check.dtype(weights, "weights", (x.dtype,))
    if weights.device != x.device:
        check.device(weights, "weights", x.device, "x")
    size: int = weights.shape[-1 if transposed else 1] if weights.dim() == 3 else -1
    if size != k:
        check.shape(weights, "weights", ("num_weights", *(("n", k) if transposed else (k, "n"))))
    n: int = weights.shape[1 if transposed else 2]
    if n < 1:
        check.fail(f"weights has shape {list(weights.shape)}, needs n >= 1")
    if weights.stride(-1) != 1 and weights.shape[-1] > 1:
        check.fail(
            f"weights has stride {weights.stride(-1)} in its last dimension, needs 1; give "
            f"weights.mT with transposed={not transposed}, or weights.contiguous()"
        )
    return n


def _check_segments(
    seg_indptr: Tensor, weight_indices: Tensor | None, x: Tensor, num_weights: int
) -> None:
    _check_index(seg_indptr, "seg_indptr", None, x)
    segments = seg_indptr.shape[0] - 1
    if segments < 0:
        check.fail("seg_indptr is empty, needs [segments + 1] with a leading 0")
    if weight_indices is not None:
        _check_index(weight_indices, "weight_indices", segments, x)
    elif segments > num_weights:
        check.fail(
            f"seg_indptr has {segments} segments but weights has {num_weights} matrices; give "
            "one for each, or weight_indices"
        )
    if x.is_cpu and not torch.compiler.is_compiling():
        starts = metadata.indptr_values(seg_indptr, "seg_indptr")
        if starts[-1] > x.shape[0]:
            check.fail(f"seg_indptr ends at {starts[-1]}, but x has {x.shape[0]} rows")
        if weight_indices is not None:
            metadata.in_range(weight_indices, "weight_indices", 0, num_weights, "matrices")


def _check_index(x: Tensor, name: str, length: int | None, like: Tensor) -> None:
    metadata.index_tensor(x, name, length)
    if x.device != like.device:
        check.device(x, name, like.device, "x")
