"""The kernel alone, in the emulator: no GPU, no planner, no dispatch."""

from __future__ import annotations

import math

import pytest
import torch

from attnhub.testing.compare import assert_close
from attnhub.testing.emulator import EmulatedKernel, Launch
from attnhub.testing.generators import seeded
from attnhub_swiglu.kernel import CHUNK, THREADS, spec

ROWS, GAP = 5, 8


def run(dtype: torch.dtype, hidden: int, *, is_aligned: bool = True) -> None:
    """Rows with NaN between them, by a grid of two rows, against float64."""
    whole = torch.full((ROWS, 2 * hidden + GAP), math.nan, dtype=dtype)
    x = whole[:, : 2 * hidden]
    x.copy_(torch.randn(x.shape, generator=seeded(hidden)))
    out = torch.full((ROWS, hidden), math.nan, dtype=dtype)
    EmulatedKernel.from_spec(spec(str(dtype).removeprefix("torch."), "sm_90a")).run(
        Launch(grid=(-(-hidden // CHUNK // THREADS), 2), block=THREADS),
        x=x,
        out=out,
        stride_x=x.stride(0),
        stride_out=out.stride(0),
        num_rows=ROWS,
        num_chunks=hidden // CHUNK,
        is_aligned=is_aligned,
    )
    gate, up = x.double().chunk(2, dim=-1)
    assert_close(out, (gate / (1 + (-gate).exp()) * up).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(CHUNK, id="one chunk"),
        pytest.param(CHUNK * THREADS, id="one CTA, full"),
        pytest.param(CHUNK * (THREADS + 1), id="one chunk in a second CTA"),
    ],
)
def test_rows_of_any_length(dtype: torch.dtype, hidden: int) -> None:
    run(dtype, hidden)


def test_element_by_element() -> None:
    run(torch.bfloat16, 3 * CHUNK, is_aligned=False)
