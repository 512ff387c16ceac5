"""FP8 conversions against torch's: every code, and every place where rounding could go wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machines import MACHINES
from tests.vocabulary import run

FP8 = {"E4m3": torch.float8_e4m3fn, "E5m2": torch.float8_e5m2}
WIDE = {"Half": torch.float16, "Bf16": torch.bfloat16}


def equal(found: Tensor, expected: Tensor) -> None:
    """Bit for bit, signs of zero included; of NaN only that it is one."""
    assert torch.equal(found.isnan(), expected.isnan())
    kept = ~expected.isnan()
    as_bits = torch.int16 if found.dtype.itemsize == 2 else torch.int32
    assert torch.equal(found.view(as_bits)[kept], expected.view(as_bits)[kept])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("fp8", FP8)
def test_every_code_widens(machine: str, fp8: str, wide: str) -> None:
    # Rolled by 0 to 3, so that each byte of a register meets all 256 codes.
    codes = torch.cat([torch.arange(256).roll(i) for i in range(4)]).to(torch.uint8)
    n = len(codes)
    pairs = {name: torch.empty(n // 2, dtype=torch.int32) for name in ("neighbours", "alternate")}
    made = torch.empty(n)
    body = f"widen_fp8<attnhub::{wide}, attnhub::{fp8}>"
    run(machine, body, "WidenParams", codes=codes, **pairs, wide=made, n=n)
    values = codes.view(FP8[fp8])
    equal(made, values.float())
    exact = values.to(WIDE[wide]).view(-1, 4)
    equal(pairs["neighbours"].view(WIDE[wide]).view(-1, 4), exact)
    equal(pairs["alternate"].view(WIDE[wide]).view(-1, 4), exact[:, [0, 2, 1, 3]])


def candidates(dtype: torch.dtype) -> Tensor:
    """All of float16 and bfloat16, and float32 round every FP8 number and every tie."""
    words = torch.arange(-(2**15), 2**15).to(torch.int16)
    grid = torch.arange(256).to(torch.uint8).view(dtype).float()
    grid = grid[grid.isfinite()].unique()
    ties = (grid[1:] + grid[:-1]) / 2
    edges = torch.cat([grid, ties])
    near = [torch.nextafter(edges, torch.tensor(way * torch.inf)) for way in (-1, 1)]
    x = torch.cat([words.view(torch.float16).float(), words.view(torch.bfloat16).float()])
    random = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, edges, *near, random, 600 * random])
    return x[: len(x) // 2 * 2]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("fp8", FP8)
def test_narrowing_rounds_and_saturates(machine: str, fp8: str) -> None:
    x = candidates(FP8[fp8])
    codes = torch.empty(len(x) // 2, dtype=torch.int16)
    body = f"narrow_to_fp8<attnhub::{fp8}>"
    run(machine, body, "NarrowParams", x=x, codes=codes, n=len(x))
    limit = torch.finfo(FP8[fp8]).max
    expected = x.clamp(-limit, limit).to(FP8[fp8])
    equal(codes.view(FP8[fp8]).float(), expected.float())


def drawn(*shape: int) -> Tensor:
    """Whole numbers, which FP8 holds exactly and of which sums are exact."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("fp8", FP8)
def test_dequantised_fragments_multiply(machine: str, fp8: str, wide: str) -> None:
    """The order of values that fp8.cuh states, of K as of V."""
    types = f"<attnhub::{wide}, attnhub::{fp8}>"
    q, k = drawn(16, 32).to(WIDE[wide]), drawn(16, 32).to(FP8[fp8])
    d = torch.empty(16, 16)
    run(machine, f"fp8_scores{types}", "ScoresParams", q=q, k=k.view(torch.uint8), d=d)
    assert torch.equal(d, q.float() @ k.float().T)
    weights, v = drawn(16, 16).to(WIDE[wide]), drawn(16, 32).to(FP8[fp8])
    d = torch.empty(16, 32)
    run(machine, f"fp8_output{types}", "OutputParams", weights=weights, v=v.view(torch.uint8), d=d)
    assert torch.equal(d, weights.float() @ v.float())
