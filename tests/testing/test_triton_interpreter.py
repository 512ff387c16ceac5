"""What is mended of Triton's interpreter computes as GPUs do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.testing.triton_interpreter import missing, repaired

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "runs")

if not missing():
    from tests.testing import interpreted_kernels as kernels

VALUES = (0.0, -0.0, 1.0625, 1.1875, -3.3, 1e-3, 2.0**-9, 65519.0, -7e4, 1e38)
VALUES += (torch.inf, -torch.inf, torch.nan)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_casts_round_to_nearest_even_and_float8_saturates(dtype: torch.dtype) -> None:
    x = torch.tensor([*VALUES, *torch.linspace(-500, 500, 115).tolist()])
    out = torch.empty(128, dtype=dtype)
    with repaired():
        kernels.cast(x, out)
    wanted = x
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        wanted = x.clamp(-limit, limit)
    torch.testing.assert_close(
        out.float(), wanted.to(dtype).float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_products(dtype: torch.dtype) -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(i)) for i in range(2))
    a, b = a.to(dtype), b.to(dtype)
    out = torch.empty(16, 16)
    with repaired():
        kernels.dot(a, b, out)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_a_comparison_of_scalars_stays_a_bool() -> None:
    out = torch.empty(16, dtype=torch.int32)
    with repaired():
        kernels.choose(torch.tensor(2.0), out)
    assert torch.equal(out, _expected())


def test_a_scalar_that_was_loaded_bounds_a_loop() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with repaired():
        kernels.count(torch.tensor([3, 7], dtype=torch.int32), out)
    assert out.tolist() == [3 + 4 + 5 + 6]


def test_a_maximum_drops_nan_unless_it_is_asked_for() -> None:
    nan, inf = torch.nan, torch.inf
    a = torch.tensor([nan, nan, nan, nan, nan, -inf, nan, -3.0, 2.0, 0.5, inf, -inf])
    a = torch.cat([a, torch.tensor([nan, 2.0, nan, 1.0])])
    b = torch.tensor([nan, -inf, 2.0, inf, *[1.0, nan] * 6])
    out = torch.full((9, 16), 7.0)
    with repaired():
        kernels.extremes(a, b, out)
    number = torch.where(a.isnan(), -1.0, a.clamp(-1, 1))
    wanted = [torch.fmax(a, b), torch.fmin(a, b), number]
    wanted += [torch.maximum(a, b), torch.minimum(a, b), a.clamp(-1, 1)]
    for found, row in zip(out, wanted, strict=False):
        torch.testing.assert_close(found, row, rtol=0, atol=0, equal_nan=True)
    reduced = torch.tensor([[nan, -3.0, inf, 2.0], [nan, -inf, -inf, 1.0]])
    torch.testing.assert_close(out[6:8, :4], reduced, rtol=0, atol=0, equal_nan=True)
    assert out[8, :2].tolist() == [inf, -inf]


def test_a_product_is_not_rounded_before_its_sum() -> None:
    a = 1 + torch.arange(1, 9) * 2.0**-23
    out = torch.full((8,), 7.0)
    with repaired():
        kernels.fma(a, a, -(a * a), out)
    assert torch.equal(out, (a.double() * a.double() - (a * a).double()).float())
    assert bool((out != 0).any())


def test_everything_is_as_before_afterwards() -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    before = vars(interpreter).copy(), vars(interpreter.InterpreterBuilder).copy()
    with repaired():
        assert vars(interpreter)["_convert_float"] is not before[0]["_convert_float"]
    assert (vars(interpreter), dict(vars(interpreter.InterpreterBuilder))) == before


def _expected() -> Tensor:
    places = torch.arange(16)
    return torch.where((places > 7) | (places == 2), 1, 0).int()
