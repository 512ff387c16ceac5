"""``attnhub.gemm`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.precision import without_autocast
from attnhub.backends.reference import Reference
from attnhub.gemm import reference


@without_autocast
def _segment_gemm(
    x: Tensor,
    weights: Tensor,
    seg_indptr: Tensor,
    weight_indices: Tensor | None,
    out: Tensor,
    transposed: bool,  # noqa: FBT001 - the op's schema has no keywords
) -> None:
    y = reference.segment_gemm(x, weights, seg_indptr, weight_indices, transposed=transposed)
    out.copy_(y)


segment_gemm = Reference(_segment_gemm)
