"""What a backend needs to know of bit packing and of FP8 quantisation."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact

_FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsProblem(Problem):
    """Facts of every packing; ``tokens`` of the extent is the number of booleans."""

    bitorder: str = fact(domain=("little", "big"), default="little")

    def work(self) -> Work:
        """A byte for each boolean and one for each eight of them."""
        (bits,), assumed = assuming(self.extent, tokens=1 << 20)
        return Work(flops=0.0, bytes=1.125 * bits, assumed=assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackbitsProblem(BitsProblem):
    """``attnhub.quantization.packbits``."""

    op = "quantization.packbits"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackbitsProblem(BitsProblem):
    """``attnhub.quantization.unpackbits``."""

    op = "quantization.unpackbits"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPackbitsProblem(BitsProblem):
    """``attnhub.quantization.segment_packbits``; ``batch`` of the extent counts the segments."""

    op = "quantization.segment_packbits"
    sizes = ("batch", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Problem(Problem):
    """Facts of both directions; ``tokens`` of the extent counts rows along the last axis."""

    #: of the side that is not FP8
    dtype: str = fact(domain=("float32", "float16", "bfloat16"))
    fp8: str = fact(domain=_FP8)
    #: size of the last axis
    hidden: int = fact(domain=(64, 111, 128, 4096))
    #: where the axis that has a scale for each index lies; "tensor" is one scale for all
    scope: str = fact(domain=("tensor", "first", "middle", "last"), default="tensor")
    contiguous: bool = fact(domain=(True, False), default=True)

    def traffic(self, wide_reads: int = 1) -> Work:
        """The wide side passes ``wide_reads`` times, the FP8 side once."""
        (rows,), assumed = assuming(self.extent, tokens=4096)
        elements = rows * self.hidden
        return Work(
            flops=2.0 * elements,
            bytes=float(elements * (1 + wide_reads * DTYPE_BYTES[self.dtype])),
            assumed=assumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeFp8Problem(Fp8Problem):
    """``attnhub.quantization.quantize_fp8``."""

    op = "quantization.quantize_fp8"

    #: the caller gives the scale, instead of having one made to fit
    given_scale: bool = fact(domain=(False, True), default=False)

    def work(self) -> Work:
        # What is scaled by a maximum over more than a row does not stay on the chip in between.
        once = self.given_scale or self.scope == "first"
        return self.traffic(1 if once else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantizeFp8Problem(Fp8Problem):
    """``attnhub.quantization.dequantize_fp8``."""

    op = "quantization.dequantize_fp8"

    def work(self) -> Work:
        return self.traffic()
