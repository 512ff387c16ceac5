"""What the grouped GEMM means: plain PyTorch, summed in float32 (float64 for float64 input)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["segment_gemm"]


def segment_gemm(
    x: Tensor,
    weights: Tensor,
    seg_indptr: Tensor,
    weight_indices: Tensor | None = None,
    *,
    transposed: bool = False,
) -> Tensor:
    """Each segment of rows times its own matrix.

    Args:
        x: ``[rows, k]``.
        weights: ``[num_weights, k, n]``, or ``[num_weights, n, k]`` if transposed.
        seg_indptr: int ``[segments + 1]``, where each segment of x starts; empty ones are fine.
        weight_indices: int ``[segments]``, the matrix of each segment; if None, segment i takes
            matrix i.
        transposed: the axes of ``weights``, see there.

    Returns:
        ``[rows, n]`` of ``x.dtype``; zero in rows that no segment covers.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> segment_gemm(x, torch.tensor([[[10.0]], [[100.0]]]), torch.tensor([0, 1, 3]))
        tensor([[ 10.],
                [200.],
                [300.]])
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    matrices = weights.mT if transposed else weights
    bounds = seg_indptr.tolist()
    chosen = range(len(bounds) - 1) if weight_indices is None else weight_indices.tolist()
    y = x.new_zeros(x.shape[0], matrices.shape[-1])
    for weight, start, end in zip(chosen, bounds[:-1], bounds[1:], strict=True):
        y[start:end] = (x[start:end].to(wide) @ matrices[weight].to(wide)).to(x.dtype)
    return y
