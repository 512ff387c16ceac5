"""What a backend needs to know of a gated activation."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact

HIDDEN = (64, 111, 500, 4096, 14336)  # 111, 500: no multiple of a vector


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedProblem(Problem):
    """Facts of every gated activation; ``hidden`` is the size of an output row."""

    dtype: str = fact(domain=("float32", "float16", "bfloat16"))
    hidden: int = fact(domain=HIDDEN)
    contiguous: bool = fact(domain=(True, False), default=True)
    #: what the result is stored as; "same" is ``dtype``
    out_dtype: str = fact(domain=("same", "float8_e4m3fn", "float8_e5m2"), default="same")

    def work(self) -> Work:
        """Gate and up are read once, their product is written once."""
        (rows,), assumed = assuming(self.extent, tokens=4096)
        elements = rows * self.hidden
        read = DTYPE_BYTES[self.dtype]
        written = read if self.out_dtype == "same" else DTYPE_BYTES[self.out_dtype]
        return Work(
            flops=6.0 * elements,
            bytes=float(elements * (2 * read + written)),
            assumed=assumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiluAndMulProblem(GatedProblem):
    """``attnhub.activation.silu_and_mul``."""

    op = "activation.silu_and_mul"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeluAndMulProblem(GatedProblem):
    """``attnhub.activation.gelu_and_mul``."""

    op = "activation.gelu_and_mul"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeluTanhAndMulProblem(GatedProblem):
    """``attnhub.activation.gelu_tanh_and_mul``."""

    op = "activation.gelu_tanh_and_mul"
