"""All forms of wgmma: every width, both types, A in shared memory or registers, either major."""

from __future__ import annotations

import pytest
import torch

from attnhub.testing.emulator import Launch
from tests.emulator import make_wgmma
from tests.emulator.specs import spec
from tests.machines import HOPPER_MACHINES, kernel_on

M, K = 64, 64


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize(("element", "dtype"), [("Half", torch.float16), ("Bf16", torch.bfloat16)])
@pytest.mark.parametrize("n", make_wgmma.WIDTHS)
def test_products(machine: str, n: int, element: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    # Whole numbers, so that sums are exact.
    a, b = (torch.randint(-8, 9, (rows, K), generator=generator).to(dtype) for rows in (M, n))
    padded = -(-n // 64) * 64
    b_mn = torch.nn.functional.pad(b.T, (0, padded - n), value=torch.nan).contiguous()
    d = torch.full((6, M, n), torch.nan)
    launch = Launch(grid=(6,), block=128, smem=2 * K * (2 * M + n + padded))
    kernel = kernel_on(machine, spec(f"wgmma::products<attnhub::{element}, {n}>"))
    kernel.run(launch, a=a, a_mn=a.T.contiguous(), b=b, b_mn=b_mn, d=d)
    assert torch.equal(d, (a.float() @ b.float().T).expand(6, M, n))


def test_the_header_is_as_generated() -> None:
    assert make_wgmma.OUTPUT.read_text(encoding="utf-8") == make_wgmma.text()
