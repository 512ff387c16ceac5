"""Division by multiplication: where quotients change, and what the device makes of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnhub.errors import InvalidArgument
from attnhub.kernels.fastdiv import FastDivisor, fast_divisor
from tests.machines import MACHINES
from tests.vocabulary import run

LIMIT = 2**31
#: Where multipliers are the least exact: near powers of two, on both sides.
NEAR_POWERS = [2**k + e for k in range(1, 31) for e in (-1, 0, 1)]


def quotient(n: int, by: FastDivisor) -> int:
    """What ``FastDiv::divide`` computes."""
    high = n * by.multiplier >> 32
    assert high + n < 2**32, "the sum overflows"
    return (high + n) >> by.shift


@pytest.mark.parametrize("first", range(1, 4097, 512))  # page sizes and groups, all of them
def test_small_divisors(first: int) -> None:
    n = torch.cat([torch.arange(70_000), torch.arange(LIMIT - 70_000, LIMIT)])
    for divisor in range(first, first + 512):
        by = fast_divisor(divisor)
        assert torch.equal((n * by.multiplier >> 32) + n >> by.shift, n // divisor)


@pytest.mark.parametrize("divisor", [*NEAR_POWERS, LIMIT - 1])
def test_boundaries(divisor: int) -> None:
    by = fast_divisor(divisor)
    for multiple in (0, divisor, LIMIT // 2 // divisor * divisor, (LIMIT - 1) // divisor * divisor):
        for n in (multiple - 1, multiple, multiple + 1, LIMIT - 1):
            if 0 <= n < LIMIT:
                assert quotient(n, by) == n // divisor


@given(st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1))
def test_any(n: int, divisor: int) -> None:
    assert quotient(n, fast_divisor(divisor)) == n // divisor


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("divisor", [1, 7, 16, LIMIT - 1])
def test_device(machine: str, divisor: int) -> None:
    numbers = torch.tensor([0, 1, 6, 7, 15, 16, 999_983, LIMIT - 2, LIMIT - 1], dtype=torch.int32)
    quotients = torch.empty_like(numbers)
    by = fast_divisor(divisor)._asdict()
    values = {"numbers": numbers, "quotients": quotients, "n": len(numbers), "divisor": by}
    run(machine, "divide", "DivideParams", **values)
    assert torch.equal(quotients, numbers // divisor)


@pytest.mark.parametrize("divisor", [0, -1, LIMIT])
def test_refuses(divisor: int) -> None:
    with pytest.raises(InvalidArgument, match="give 1 to 2147483647"):
        fast_divisor(divisor)
