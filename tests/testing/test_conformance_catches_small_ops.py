"""The suite catches unsound backends of the ops that take nothing but tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.testing.liars import Register, assert_noticed, packed

Lie = Callable[..., None]


# -- rope: q, k, positions, q_out, k_out; of tables also the cache and interleaved ----------------


def rope_without(**changes: Any) -> Any:
    """Drop a part of the rotation."""

    def change(problem: Any) -> Any:
        return dataclasses.replace(problem, rope=dataclasses.replace(problem.rope, **changes))

    return change


def rope_in_two_steps(honest: Any, q: Any, k: Any, positions: Any, *out: Any) -> None:
    """The second half is read after the first was written, unless they are the same object."""
    for x, y in zip((q, k), out, strict=True):
        new = torch.empty_like(x)
        honest(x, x, positions, new, new)
        half = x.shape[-1] // 2
        y[..., :half] = new[..., :half]
        honest(x, x, positions, new, new)
        y[..., half:] = new[..., half:]


def rope_of_keys_by_order(honest: Any, q: Any, k: Any, positions: Any, *out: Any) -> None:
    honest(q, k, torch.arange(len(positions)), *out)


def rope_clears_the_rest(honest: Any, *args: Any) -> None:
    honest(*args)
    for out in args[4:6]:
        out[..., args[3].shape[1] :] = 0


def rope_table_packed(honest: Any, q: Any, k: Any, positions: Any, cache: Any, *rest: Any) -> None:
    honest(q, k, positions, packed(cache), *rest)


def rope_always_in_halves(honest: Any, *args: Any) -> None:
    honest(*args[:-1], False)


# A narrow head turns 2 elements, since it cannot turn the 64 that the wide ones turn.
PARTIAL = {f"head_dim={n}" for n in (40, 80, 128, 256)} | {"rotary_dim=2", "rotary_dim=40"}
ROPE: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "rotary_dim ignored": ("apply_rope", {"problem": rope_without(rotary_dim=None)}, PARTIAL),
    "pairing ignored": (
        "apply_rope",
        {"problem": rope_without(interleaved=False)},
        {"interleaved=True"},
    ),
    "scaling ignored": (
        "apply_rope",
        {"problem": rope_without(scaling=None)},
        {"scaling=linear", "scaling=llama3", "scaling=yarn"},
    ),
    "positions taken for an order": ("apply_rope", {"run": rope_of_keys_by_order}, {"base"}),
    "written before it is read": ("apply_rope", {"run": rope_in_two_steps}, {"base"}),
    "rest of a head not copied": (
        "apply_rope_cos_sin",
        {"run": rope_clears_the_rest},
        PARTIAL,
    ),
    "table read as packed": ("apply_rope_cos_sin", {"run": rope_table_packed}, {"base"}),
    "pairing of tables ignored": (
        "apply_rope_cos_sin",
        {"run": rope_always_in_halves},
        {"interleaved=True"},
    ),
}

# -- cascade --------------------------------------------------------------------------------------


def merge_by_weights(honest: Any, o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, *out: Any) -> None:
    """A weight of 0 times NaN is NaN."""
    lse = torch.logaddexp(lse_a, lse_b)
    weights = ((x - lse).exp().nan_to_num(0.0)[..., None] for x in (lse_a, lse_b))
    w_a, w_b = weights
    out[0].copy_(w_a * o_a + w_b * o_b)
    out[1].copy_(lse)


def merge_in_two_steps(honest: Any, o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, *out: Any) -> None:
    """The LSE is written before the outputs are merged by it."""
    spare = tuple(torch.empty_like(x) for x in out)
    honest(o_a, lse_a, o_b, lse_b, *spare)
    out[1].copy_(spare[1])
    honest(o_a, lse_a, o_b, lse_b, out[0], spare[1])


def merge_unmasked(honest: Any, *args: Any) -> None:
    honest(*args[:-1], None)


def merge_of_some(honest: Any, o: Any, lse: Any, *out: Any) -> None:
    if o.shape[1]:
        honest(o, lse, *out)


def merge_in_log2(honest: Any, o: Any, lse: Any, out: Any, out_lse: Any) -> None:
    honest(o, lse, out, out_lse)
    out_lse.mul_(1.4427)


CASCADE = {
    "nothing weighs NaN": ("merge_state", {"run": merge_by_weights}, {"base"}),
    "written before it is read": ("merge_state", {"run": merge_in_two_steps}, {"base"}),
    "mask ignored": ("merge_state_in_place", {"run": merge_unmasked}, {"mask=True"}),
    "no states, no output": ("merge_states", {"run": merge_of_some}, {"num_states=0"}),
    "log2": ("merge_states", {"run": merge_in_log2}, {"base"}),
}

# -- gemm: x, weights, seg_indptr, weight_indices, out, transposed --------------------------------


def gemm_leaves_the_rest(honest: Any, *args: Any) -> None:
    before = args[4].clone()
    honest(*args)
    end = int(args[2][-1])
    args[4][end:] = before[end:]


def gemm_adds_up(
    honest: Any, x: Any, weights: Any, indptr: Any, indices: Any, out: Any, t: Any
) -> None:
    before = out.clone()
    honest(x, weights, indptr, indices, out, t)
    out += before


def gemm_in_order(honest: Any, *args: Any) -> None:
    honest(*args[:3], None, *args[4:])


def gemm_as_kn(honest: Any, *args: Any) -> None:
    square = args[1].shape[1] == args[1].shape[2]
    honest(*args[:-1], args[-1] and not square)


def gemm_reads_all(honest: Any, x: Any, weights: Any, *rest: Any) -> None:
    honest(x, weights, *rest)
    rest[2].add_(0 * weights.sum())


GEMM = {
    "uncovered rows left": ("segment_gemm", {"run": gemm_leaves_the_rest}, {"base"}),
    "added to what was there": ("segment_gemm", {"run": gemm_adds_up}, {"base"}),
    "weight_indices ignored": ("segment_gemm", {"run": gemm_in_order}, {"indexed=True"}),
    "transposed ignored": ("segment_gemm", {"run": gemm_as_kn}, {"transposed=True"}),
    "matrices of nobody read": ("segment_gemm", {"run": gemm_reads_all}, {"base"}),
}

# -- activation and quantization -------------------------------------------------------------------


def other_half_first(honest: Any, x: Any, *rest: Any) -> None:
    honest(torch.cat(x.chunk(2, -1)[::-1], -1), *rest)


def in_half_precision(honest: Any, x: Any, out: Any, scale: Any) -> None:
    gate, up = x.half().chunk(2, -1)
    out.copy_(torch.nn.functional.gelu(gate) * up)


def rows_packed(honest: Any, x: Any, *rest: Any) -> None:
    honest(packed(x), *rest)


def with_tanh(honest: Any, x: Any, out: Any, scale: Any) -> None:
    gate, up = x.chunk(2, -1)
    out.copy_(torch.nn.functional.gelu(gate, approximate="tanh") * up)


def unsaturated(honest: Any, x: Any, out: Any, scale: Any) -> None:
    honest(x, out, scale)
    if scale is not None:
        wide = out.float()
        out.copy_(wide.where(wide.abs() < torch.finfo(out.dtype).max, torch.nan))


def unscaled(honest: Any, x: Any, out: Any, scale: Any) -> None:
    honest(x, out, None if scale is None else torch.ones_like(scale))


GATED_FP8 = {"out_dtype=float8_e4m3fn", "out_dtype=float8_e5m2"}
ACTIVATION = {
    "gate and up exchanged": ("silu_and_mul", {"run": other_half_first}, {"base"}),
    "strides ignored": ("silu_and_mul", {"run": rows_packed}, {"contiguous=False"}),
    "tanh for the exact gelu": ("gelu_and_mul", {"run": with_tanh}, {"base"}),
    "half precision": ("gelu_tanh_and_mul", {"run": in_half_precision}, {"base"}),
    "FP8 scale ignored": ("silu_and_mul", {"run": unscaled}, GATED_FP8),
    "FP8 without saturation": ("gelu_and_mul", {"run": unsaturated}, GATED_FP8),
}


def always_little(honest: Any, *args: Any) -> None:
    honest(*args[:-1], "little")


def last_byte_kept(honest: Any, x: Any, out: Any, bitorder: Any) -> None:
    before = out[-1:].clone()
    honest(x, out, bitorder)
    out[-1:] |= before << x.numel() % 8 if x.numel() % 8 else 0


def bytes_kept(honest: Any, x: Any, indptr: Any, out: Any, byte_indptr: Any, bitorder: Any) -> None:
    before = out.fill_(7).clone()
    honest(x, indptr, out, byte_indptr, bitorder)
    out[int(byte_indptr[-1]) :] = before[int(byte_indptr[-1]) :]


def wraps(honest: Any, x: Any, scale: Any, out: Any, scale_out: Any, axis: Any) -> None:
    honest(x, scale, out, scale_out, axis)
    limit = torch.finfo(out.dtype).max
    wide = out.float()
    out.copy_(wide.where(wide.abs() < limit, torch.nan))


def one_scale(honest: Any, x: Any, scale: Any, out: Any, scale_out: Any, axis: Any) -> None:
    if axis is None or scale is not None:
        honest(x, scale, out, scale_out, axis)
        return
    one = torch.empty((), device=x.device)
    honest(x, None, out, one, None)
    scale_out.fill_(one)


def own_scale(honest: Any, x: Any, scale: Any, out: Any, scale_out: Any, axis: Any) -> None:
    fitting = scale_out if scale is None else torch.empty_like(scale)
    honest(x, None, out, fitting, axis)


def times_the_first_scale(honest: Any, stored: Any, scale: Any, out: Any, axis: Any) -> None:
    first = scale if axis is None else scale[:1].expand(scale.shape)
    honest(stored, first.contiguous(), out, axis)


AXES = {"scope=first", "scope=middle", "scope=last"}
QUANTIZATION = {
    "bit order ignored": ("packbits", {"run": always_little}, {"bitorder=big"}),
    "last byte not filled up": ("packbits", {"run": last_byte_kept}, {"base", "bitorder=big"}),
    "bit order of bytes ignored": ("unpackbits", {"run": always_little}, {"bitorder=big"}),
    "bytes past the end": ("segment_packbits", {"run": bytes_kept}, {"base", "bitorder=big"}),
    "no saturation": ("quantize_fp8", {"run": wraps}, {"base"}),
    "axis ignored": ("quantize_fp8", {"run": one_scale}, AXES),
    "given scale ignored": ("quantize_fp8", {"run": own_scale}, {"given_scale=True"}),
    "one scale for all": ("dequantize_fp8", {"run": times_the_first_scale}, AXES),
}

FAMILIES = {
    "rope": ROPE,
    "cascade": CASCADE,
    "gemm": GEMM,
    "activation": ACTIVATION,
    "quantization": QUANTIZATION,
}
LIES = [
    pytest.param(f"{family}.{op}", lie, noticed, id=f"{family}: {name}")
    for family, lies in FAMILIES.items()
    for name, (op, lie, noticed) in lies.items()
]


@pytest.mark.parametrize(("op", "lie", "noticed"), LIES)
def test_catches(register: Register, op: str, lie: dict[str, Any], noticed: set[str]) -> None:
    assert_noticed(register, op, lie, noticed)
