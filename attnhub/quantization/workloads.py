"""Inputs of bit packing and FP8 quantisation: large ones for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from attnhub.core.calls import Call, Calls, Run, spaced
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.quantization import bits, fp8
from attnhub.quantization.problem import (
    BitsProblem,
    DequantizeFp8Problem,
    Fp8Problem,
    QuantizeFp8Problem,
)
from attnhub.quantization.reference import BitOrder

Make = Callable[[torch.device, torch.Generator], Run]

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
    def make(device: torch.device, generator: torch.Generator) -> Run:
        x = _booleans(count, device, generator)
        out = bits.packbits(x)
        return lambda: bits.packbits(x, out=out)

    return make


def _unpackbits(count: int, segments: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
        x = _booleans(count, device, generator)
        packed = bits.packbits(x)
        return lambda: bits.unpackbits(packed, count, out=x)

    return make


def _segment_packbits(count: int, segments: int) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
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
    def make(device: torch.device, generator: torch.Generator) -> Run:
        x, out, _ = _stored(shape, axis, device, generator)
        return lambda: fp8.quantize_fp8(x, out.dtype, axis=axis, out=out)

    return make


def _dequantize_fp8(shape: tuple[int, int, int], axis: int | None) -> Make:
    def make(device: torch.device, generator: torch.Generator) -> Run:
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


#: None, less than a byte, whole bytes, no multiple of 8 over several blocks of threads.
_COUNTS = (0, 3, 64, 1001)
#: Booleans of each segment: empty ones at both ends and inside, whole bytes, parts of bytes.
_SEGMENTS = (0, 8, 3, 0, 0, 17, 300, 1, 0)
_FULL = 255


def _order(problem: BitsProblem) -> BitOrder:
    return cast("BitOrder", problem.bitorder)


def _packbits_calls(problem: BitsProblem, device: torch.device, generator: torch.Generator) -> Run:
    inputs = [_booleans(count, device, generator) for count in _COUNTS]

    def packed(x: Tensor) -> Tensor:
        out = torch.full((-(-x.numel() // 8),), _FULL, dtype=torch.uint8, device=device)
        return bits.packbits(x, bitorder=_order(problem), out=out)

    return lambda: {f"of {x.numel()}": packed(x) for x in inputs}


def _unpackbits_calls(
    problem: BitsProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """Random bytes: what lies past the last boolean is not 0; then no bytes."""
    packed = torch.randint(0, 256, (200,), dtype=torch.uint8, generator=generator).to(device)
    order = _order(problem)

    def run() -> dict[str, Tensor]:
        found = {f"{n} of them": bits.unpackbits(packed, n, bitorder=order) for n in _COUNTS}
        return {**found, "none of none": bits.unpackbits(packed[:0], 0, bitorder=order)}

    return run


def _segment_calls(problem: BitsProblem, device: torch.device, generator: torch.Generator) -> Run:
    """With the very number of bytes that is needed, with more, and without segments."""
    x, order = _booleans(sum(_SEGMENTS), device, generator), _order(problem)
    lengths = torch.tensor((0, *_SEGMENTS), dtype=torch.int32)
    indptr = lengths.cumsum(0, dtype=torch.int32).to(device)
    needed = int(lengths.add(7).div(8, rounding_mode="floor").sum())

    def run() -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, size in (("", needed), (", with room", needed + 5)):
            packed, starts = bits.segment_packbits(x, indptr, bitorder=order, total_bytes=size)
            found |= {f"bytes{name}": packed, f"starts{name}": starts}
        nothing, start = bits.segment_packbits(x[:0], indptr[:1], bitorder=order, total_bytes=0)
        return {**found, "bytes of none": nothing, "starts of none": start}

    return run


_AXES = {"tensor": None, "first": 0, "middle": 1, "last": 2}


def _hard_values(
    problem: Fp8Problem, tokens: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    """``[tokens, 3, hidden]`` with what must saturate, what must stay NaN, and zeros.

    The last token, the last head and the last element of each row are zero throughout.
    """
    x = torch.randn(tokens, 3, problem.hidden, generator=generator)
    x[:1, 0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    x[1:2] *= 100
    x[-1:], x[:, -1:], x[..., -1:] = 0, 0, 0
    return x.to(device, getattr(torch, problem.dtype))


def _forms(x: Tensor, problem: Fp8Problem) -> Iterator[tuple[str, Tensor, int | None]]:
    """Values with the axis of their scales, then as many dimensions as the scope also allows."""
    axis = _AXES[problem.scope]
    yield f"{len(x)} tokens", x, axis
    if len(x) and problem.scope == "middle":
        yield "more dimensions", x[None], 2
    elif len(x) and problem.scope == "last":
        yield "matrix", x[0], 1
    elif len(x) and problem.contiguous:  # one row cannot lie apart
        yield "one row", x[0, 0], axis


def _scale(x: Tensor, axis: int | None) -> Tensor:
    """Scales that differ by index, the smallest so small that values pass the range of FP8."""
    if axis is None:
        return torch.tensor(0.01, device=x.device)
    return torch.logspace(-3, 1, x.shape[axis], device=x.device)


def _quantize_calls(
    problem: QuantizeFp8Problem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    stored = getattr(torch, problem.fp8)

    def call(x: Tensor, axis: int | None) -> Run:
        def run() -> dict[str, Tensor]:
            out = torch.full(x.shape, math.nan, dtype=stored, device=device)
            pair = (x, out) if problem.contiguous else (spaced(x), spaced(out))
            scale = _scale(x, axis) if problem.given_scale else None
            found = fp8.quantize_fp8(pair[0], stored, axis=axis, scale=scale, out=pair[1])
            return dict(zip(("stored", "scale"), found, strict=True))

        return run

    for tokens in (5, 0):
        values = _hard_values(problem, tokens, device, generator)
        for name, x, axis in _forms(values, problem):
            yield Call(name=name, run=call(x, axis))


def _dequantize_calls(
    problem: DequantizeFp8Problem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    dtype = getattr(torch, problem.dtype)

    def call(x: Tensor, axis: int | None) -> Run:
        def run() -> Tensor:
            out = torch.full(x.shape, math.nan, dtype=dtype, device=device)
            pair = (x, out) if problem.contiguous else (spaced(x), spaced(out))
            return fp8.dequantize_fp8(pair[0], _scale(x, axis), axis=axis, dtype=dtype, out=pair[1])

        return run

    for tokens in (5, 0):
        values = _hard_values(problem, tokens, device, generator).float().clamp(-400, 400)
        for name, x, axis in _forms(values.to(getattr(torch, problem.fp8)), problem):
            yield Call(name=name, run=call(x, axis))


_BASE = {"dtype": "float32"}
calls = {
    "quantization.packbits": Calls(build=_packbits_calls),
    "quantization.unpackbits": Calls(build=_unpackbits_calls),
    "quantization.segment_packbits": Calls(build=_segment_calls),
    "quantization.quantize_fp8": Calls(build=_quantize_calls, base=_BASE),
    "quantization.dequantize_fp8": Calls(build=_dequantize_calls, base=_BASE),
}
