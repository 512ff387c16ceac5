"""Launches: the number of programs, and how kernels wait for the one before them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnhub.plugin import launch_triton

__all__ = ["cdiv", "launch", "overlap"]

#: Every kernel here begins by :func:`overlap`.
launch: Callable[..., None] = partial(launch_triton, pdl=True)


@triton.jit
def overlap(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the one before: the first thing in a kernel.

    So blocks of a kernel are on their SMs when the one before it ends, which saves a launch's
    latency; each of them waits here until that one has written everything (CUDA's programmatic
    dependent launch).
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def cdiv(size: int, step: int) -> int:
    """``size / step``, rounded up; triton.cdiv, made for kernels, takes a microsecond for it."""
    return -(-size // step)
