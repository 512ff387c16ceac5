"""FP8 by arithmetic against torch's casts: every code, every tie and its neighbours."""

import math

import pytest
import torch
import triton
import triton.language as tl

from attnhub.testing.triton_interpreter import interprets
from attnhub_triton_misc.fp8 import cast, decode, encode

_BLOCK = 1 << 16
_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
_HAS_CASTS = interprets() or (
    torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
)
_NEEDS_CASTS = pytest.mark.skipif(not _HAS_CASTS, reason="sm_90 is the first to have the casts")


@triton.jit
def _encode(x_ptr, code_ptr, count, E5M2: tl.constexpr, CAST: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < count, other=0.0)
    code = cast(x, E5M2) if CAST else encode(x, E5M2)
    tl.store(code_ptr + index, code, mask=index < count)


@triton.jit
def _decode(code_ptr, x_ptr, E5M2: tl.constexpr):
    index = tl.arange(0, 256)
    tl.store(x_ptr + index, decode(tl.load(code_ptr + index), E5M2))


def _codes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def _values(dtype: torch.dtype) -> torch.Tensor:
    """Every value of FP8, every tie between two and the float32 next to each; steps of all else."""
    exact = _codes().view(dtype).double()
    exact = exact[exact.isfinite()].unique()
    ties = (exact[1:] + exact[:-1]) / 2
    beyond = torch.tensor([math.inf, math.nan, 1e-45, 1e-40, 3e38, 464, 61440], dtype=torch.double)
    signed = torch.cat([exact, ties, beyond, -beyond]).float().view(torch.int32)
    near = torch.cat([signed + step for step in (-1, 0, 1)])
    steps = torch.arange(-(2**31), 2**31, 16411).to(torch.int32)
    return torch.cat([near, steps]).view(torch.float32)


@pytest.mark.parametrize("by_cast", [False, pytest.param(True, marks=_NEEDS_CASTS)])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_encode_rounds_to_nearest_even_and_saturates(dtype, by_cast, device):
    x = _values(dtype).to(device)
    found = torch.empty(len(x), dtype=torch.uint8, device=device)
    grid = (triton.cdiv(len(x), _BLOCK),)
    _encode[grid](x, found, len(x), E5M2=dtype == torch.float8_e5m2, CAST=by_cast, BLOCK=_BLOCK)
    limit = torch.finfo(dtype).max
    expected = x.clamp(-limit, limit).to(dtype).view(torch.uint8)
    if by_cast:  # which drops the sign of NaN
        found, expected = (torch.where(x.isnan(), code & 0x7F, code) for code in (found, expected))
    differ = found != expected
    assert not differ.any(), f"{x[differ][:5]}: got {found[differ][:5]}, not {expected[differ][:5]}"


@pytest.mark.parametrize("dtype", _DTYPES)
def test_decode_is_exact(dtype, device):
    codes = _codes().to(device)
    found = torch.empty(256, device=device)
    _decode[(1,)](codes, found, E5M2=dtype == torch.float8_e5m2)
    torch.testing.assert_close(found, codes.view(dtype).float(), rtol=0, atol=0, equal_nan=True)
