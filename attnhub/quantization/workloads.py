"""Inputs of bit packing and FP8 quantisation: small ones for tests, large ones for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.quantization import bits, fp8

Call = Callable[[], Any]
Make = Callable[[torch.device, torch.Generator], Call]

#: (booleans, segments, tags); 1001 is no multiple of 8, 2**26 bits are 16 masks of 2048 x 2048.
_BITS = ((64, 1, "small"), (1001, 3, "small"), (1 << 20, 8, "h200"), (1 << 26, 16, "h200"))

#: (tokens, heads, dim, axis, tags): one scale, per token, per head.
_FP8: tuple[tuple[int, int, int, int | None, str], ...] = (
    (5, 3, 64, None, "small"),
    (5, 3, 37, 0, "small"),
    (5, 3, 64, 1, "small"),
    (128, 8, 128, None, "h200"),
    (16384, 8, 128, None, "h200"),
    (16384, 1, 4096, 0, "h200"),
    (16384, 8, 128, 1, "h200"),
)


def _booleans(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, generator=generator, device=generator.device) < 0.5).to(device)


def _packbits(count: int, segments: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Call:
        x = _booleans(count, device, generator)
        out = bits.packbits(x)
        return lambda: bits.packbits(x, out=out)

    return make


def _unpackbits(count: int, segments: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Call:
        x = _booleans(count, device, generator)
        packed = bits.packbits(x)
        return lambda: bits.unpackbits(packed, count, out=x)

    return make


def _segment_packbits(count: int, segments: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Call:
        x = _booleans(count, device, generator)
        starts = torch.arange(segments, dtype=torch.int32) * (count // segments)
        indptr = torch.cat([starts, torch.tensor([count], dtype=torch.int32)]).to(device)
        total_bytes = (count + 7 * segments) // 8
        return lambda: bits.segment_packbits(x, indptr, total_bytes=total_bytes)

    return make


def _stored(
    shape: tuple[int, int, int], axis: int | None, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """A bfloat16 tensor, and its FP8 values and scales."""
    drawn = torch.randn(shape, generator=generator, device=generator.device)
    x = drawn.to(device, torch.bfloat16)
    return x, *fp8.quantize_fp8(x, torch.float8_e4m3fn, axis=axis)


def _quantize_fp8(shape: tuple[int, int, int], axis: int | None) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Call:
        x, out, _ = _stored(shape, axis, device, generator)
        return lambda: fp8.quantize_fp8(x, out.dtype, axis=axis, out=out)

    return make


def _dequantize_fp8(shape: tuple[int, int, int], axis: int | None) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Call:
        x, stored, scale = _stored(shape, axis, device, generator)
        return lambda: fp8.dequantize_fp8(stored, scale, axis=axis, dtype=x.dtype, out=x)

    return make


def _bits_cases(make: Callable[[int, int], Make]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{count}-bits-{segments}-segments",
            make=make(count, segments),
            work=Work(flops=0.0, bytes=1.125 * count),
            tags=frozenset({tag}),
            facts={"bits": count, "segments": segments},
        )
        for count, segments, tag in _BITS
    )


def _fp8_cases(make: Callable[..., Make]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{tokens}x{heads}x{dim}-axis-{axis}-bfloat16-e4m3",
            make=make((tokens, heads, dim), axis),
            work=Work(flops=2.0 * tokens * heads * dim, bytes=3.0 * tokens * heads * dim),
            tags=frozenset({tag}),
            facts={"tokens": tokens, "heads": heads, "dim": dim, "axis": axis},
        )
        for tokens, heads, dim, axis, tag in _FP8
    )


packbits = _bits_cases(_packbits)
unpackbits = _bits_cases(_unpackbits)
segment_packbits = _bits_cases(_segment_packbits)
quantize_fp8 = _fp8_cases(_quantize_fp8)
dequantize_fp8 = _fp8_cases(_dequantize_fp8)
