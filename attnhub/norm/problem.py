"""What a backend needs to know of a normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact

HIDDEN = (64, 111, 500, 4096, 32768)  # 111, 500: no multiple of a vector; 32768: over 48 KB a row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm(Problem):
    dtype: str = fact(domain=("float16", "bfloat16", "float32"))
    hidden: int = fact(domain=HIDDEN)
    contiguous: bool = fact(domain=(True, False), default=True)

    def traffic(self, tensors: int) -> Work:
        """Rows are read or written ``tensors`` times."""
        (rows,), assumed = assuming(self.extent, tokens=4096)
        elements = rows * self.hidden
        return Work(
            flops=4.0 * elements,
            bytes=float(tensors * elements * DTYPE_BYTES[self.dtype]),
            assumed=assumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSNormProblem(_Norm):
    """``attnhub.norm.rmsnorm`` and ``gemma_rmsnorm``."""

    op = "norm.rmsnorm"

    def work(self) -> Work:
        return self.traffic(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAddRMSNormProblem(_Norm):
    """``attnhub.norm.fused_add_rmsnorm`` and its Gemma form."""

    op = "norm.fused_add_rmsnorm"

    def work(self) -> Work:
        return self.traffic(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormProblem(_Norm):
    """``attnhub.norm.layernorm``."""

    op = "norm.layernorm"

    bias: bool = fact(domain=(True, False), default=False)

    def work(self) -> Work:
        return self.traffic(2)
