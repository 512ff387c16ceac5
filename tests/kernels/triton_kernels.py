"""Kernels for test_triton_launch.py, which imports this where Triton does not interpret."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["count"])
def affine(x_ptr, tensors, count, gain, add, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """``tensors[0][i] = x[i] * gain + tensors[1][i * tensors[2]] + tensors[3]``, if ``add``."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = place < count
    y = tl.load(x_ptr + place, mask=live, other=0.0) * gain
    if tensors[1] is not None:
        y += tl.load(tensors[1] + place * tensors[2], mask=live, other=0.0)
    if add:
        y += tensors[3]
    tl.store(tensors[0] + place, y, mask=live)


BLOCK = 128


def arguments(x: Any, out: Any, bias: Any, stride: int, more: int, *, add: bool) -> tuple[Any, ...]:
    """As ``affine`` takes them."""
    return x, (out, bias, stride, more), x.numel(), 2.0, add
