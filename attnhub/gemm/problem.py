"""What a backend needs to know of a grouped matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGemmProblem(Problem):
    """``attnhub.gemm.segment_gemm``: ``batch`` segments of ``tokens`` rows together."""

    op = "gemm.segment_gemm"
    sizes = ("batch", "tokens")

    dtype: str = fact(domain=("float16", "bfloat16", "float32"))
    k: int = fact(domain=(64, 111, 4096))
    n: int = fact(domain=(64, 7, 4096))
    #: weights are ``[num_weights, n, k]``
    transposed: bool = fact(domain=(True, False), default=False)
    #: weight_indices is given
    indexed: bool = fact(domain=(True, False), default=False)
    #: every matrix of the call
    contiguous: bool = fact(domain=(True, False), default=True)

    def work(self) -> Work:
        """Each row meets one matrix; each segment reads its own."""
        (batch, tokens), assumed = assuming(self.extent, batch=8, tokens=1024)
        elements = tokens * (self.k + self.n) + batch * self.k * self.n
        return Work(
            flops=2.0 * tokens * self.k * self.n,
            bytes=float(elements * DTYPE_BYTES[self.dtype]),
            assumed=assumed,
        )
