"""The public gated activations: values, checks, and how they behave under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import attnhub
from attnhub.activation import api, reference, workloads
from attnhub.errors import InvalidArgument
from attnhub.testing.compare import assert_close

NAMES = ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BY_NAME = pytest.mark.parametrize("name", NAMES)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def expected(name: str, x: torch.Tensor) -> torch.Tensor:
    return getattr(reference, name)(x.double())


@BY_NAME
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((3, 256), id="rows"),
        pytest.param((222,), id="one-row-odd-hidden"),
        pytest.param((2, 3, 2), id="hidden-1-two-leading-axes"),
        pytest.param((0, 8), id="no-rows"),
    ],
)
def test_values(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = normal(*shape, dtype=dtype)
    before = x.clone()
    y = getattr(attnhub.activation, name)(x)
    assert y.dtype == dtype
    assert_close(y, expected(name, x))
    assert torch.equal(x, before)


@BY_NAME
def test_strided_input_and_out(name: str) -> None:
    x, whole = normal(5, 40)[::2, 4:36], torch.full((3, 20), torch.nan)
    out = whole[:, 2:18]
    assert getattr(api, name)(x, out=out) is out
    assert_close(out, expected(name, x))
    assert bool(whole[:, :2].isnan().all())
    assert bool(whole[:, 18:].isnan().all())


@BY_NAME
@pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fp8_is_the_product_over_the_scale_rounded_once(
    name: str, dtype: torch.dtype, fp8: torch.dtype
) -> None:
    x, scale = normal(40, 64, dtype=dtype), torch.tensor(0.125)
    stored = getattr(attnhub.activation, name)(x, dtype=fp8, scale=scale)
    assert stored.dtype == fp8
    exact = expected(name, x) / 0.125
    info = torch.finfo(fp8)
    step = info.eps * 2.0 ** exact.abs().clamp(min=info.tiny).log2().floor()
    assert bool(((stored.double() - exact).abs() <= 0.50001 * step).all())


@BY_NAME
@pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
def test_fp8_saturates_and_keeps_nan(name: str, fp8: torch.dtype) -> None:
    up = torch.tensor([1e6, -1e6, torch.inf, -torch.inf, torch.nan, 0.0])
    x = torch.cat([torch.full((6,), 20.0), up])
    out = torch.empty(6, dtype=fp8)
    function: Callable[..., torch.Tensor] = getattr(api, name)
    assert function(x, out=out, dtype=fp8, scale=torch.tensor(1.0)) is out
    limit = torch.finfo(fp8).max
    assert out.float()[:4].tolist() == [limit, -limit, limit, -limit]
    assert bool(out.float()[4].isnan())
    assert out.float()[5].item() == 0.0


@BY_NAME
@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"scale": torch.tensor(1.0)},
            r"scale is given, but .* dtype of x has none; .* dtype=torch\.float8_e4m3fn",
            id="scale-without-dtype",
        ),
        pytest.param(
            {"dtype": E4M3}, r"dtype=torch\.float8_e4m3fn needs scale=", id="dtype-without-scale"
        ),
        pytest.param(
            {"dtype": torch.float16, "scale": torch.tensor(1.0)},
            r"dtype=torch\.float16: give torch\.float8_e4m3fn, .* None",
            id="no-fp8",
        ),
        pytest.param(
            {"dtype": "float8_e4m3fn", "scale": torch.tensor(1.0)},
            "dtype=float8_e4m3fn: give torch",
            id="name-of-a-dtype",
        ),
        pytest.param(
            {"dtype": E4M3, "scale": 1.0}, "scale must be a torch.Tensor, got float", id="number"
        ),
        pytest.param(
            {"dtype": E4M3, "scale": torch.ones(1)},
            r"scale has shape \[1\], needs \[\]",
            id="shape",
        ),
        pytest.param(
            {"dtype": E4M3, "scale": torch.tensor(1.0).half()},
            "scale has dtype float16, needs float32",
            id="half-scale",
        ),
        pytest.param(
            {"dtype": E4M3, "scale": torch.tensor(1.0, device="meta")},
            "scale is on meta, but x is on cpu",
            id="device",
        ),
        pytest.param(
            {"dtype": E4M3, "scale": torch.tensor(1.0), "out": torch.empty(2, 4)},
            "out has dtype float32, needs float8_e4m3fn",
            id="out-of-x",
        ),
        pytest.param(
            {"out": torch.empty(2, 4, dtype=E4M3)},
            "out has dtype float8_e4m3fn, needs float32",
            id="out-without-dtype",
        ),
    ],
)
def test_bad_fp8_is_refused(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        getattr(api, name)(normal(2, 8), **given)


@BY_NAME
@pytest.mark.parametrize(
    ("x", "message"),
    [
        pytest.param(
            normal(2, 7), r"shape \[2, 7\], needs \[..., 2 \* hidden\].*concatenate", id="odd"
        ),
        pytest.param(normal(2, 0), "with hidden >= 1", id="empty-rows"),
        pytest.param(torch.tensor(1.0), r"shape \[\], needs", id="scalar"),
        pytest.param(
            torch.ones(2, 4, dtype=torch.int32), "x has dtype int32, needs float16 or", id="int32"
        ),
        pytest.param(normal(2, 4).double(), "x has dtype float64", id="float64"),
        pytest.param(normal(4, 2).T, r"stride 2 in its last.*x\.contiguous\(\)", id="stride"),
        pytest.param(
            normal(2, 4).requires_grad_(), "forward only.*use torch.no_grad", id="needs-grad"
        ),
    ],
)
def test_bad_input_is_refused(name: str, x: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        getattr(api, name)(x)


@BY_NAME
@pytest.mark.parametrize(
    ("out", "message"),
    [
        pytest.param(torch.empty(2, 8), r"out has shape \[2, 8\], needs \[2, 4\]", id="shape"),
        pytest.param(torch.empty(2, 4).half(), "out has dtype float16, needs float32", id="dtype"),
        pytest.param(
            torch.empty(2, 4, device="meta"), "out is on meta, but x is on cpu", id="device"
        ),
        pytest.param(torch.empty(4, 2).T, "out has stride 2", id="stride"),
    ],
)
def test_bad_out_is_refused(name: str, out: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        getattr(api, name)(normal(2, 8), out=out)


def test_grad_is_no_hindrance_under_no_grad() -> None:
    with torch.no_grad():
        assert api.silu_and_mul(normal(2, 4).requires_grad_()).shape == (2, 2)


@BY_NAME
def test_is_a_well_formed_op(name: str) -> None:
    overload = getattr(api, f"_{name}").overload
    torch.library.opcheck(overload, (normal(3, 8), torch.empty(3, 4), None))
    overload(normal(3, 8).to("meta"), torch.empty(3, 4, device="meta"), None)
    stored, scale = torch.empty(3, 4, dtype=E4M3), torch.tensor(1.0)
    torch.library.opcheck(overload, (normal(3, 8), stored, scale), test_utils="test_faketensor")


@BY_NAME
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(name: str, dynamic: bool) -> None:
    function: Callable[..., torch.Tensor] = getattr(api, name)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        x = normal(tokens, 8, dtype=torch.bfloat16)
        assert torch.equal(compiled(x), function(x))
        out = torch.empty(tokens, 4, dtype=torch.bfloat16)
        assert compiled(x, out=out) is out
        assert torch.equal(out, function(x))


@BY_NAME
def test_fp8_compiles_whole(name: str) -> None:
    function: Callable[..., torch.Tensor] = getattr(api, name)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x, scaled = normal(3, 8), {"dtype": E5M2, "scale": torch.tensor(0.5)}
    assert torch.equal(compiled(x, **scaled).float(), function(x, **scaled).float())


@BY_NAME
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            tokens, hidden = workload.facts["tokens"], workload.facts["hidden"]
            run = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))
            x = normal(tokens, 2 * hidden, dtype=torch.bfloat16)
            assert_close(run(), expected(name, x))


@pytest.mark.usefixtures("isolated_registry")
def test_problem_tells_work() -> None:
    decision = attnhub.explain(
        "activation.silu_and_mul", device="h200", dtype="bfloat16", hidden=14336, tokens=8192
    )
    assert decision.chosen.name == "reference"
    problem = api.SiluAndMulProblem.of("h200", dtype="float32", hidden=100, tokens=64)
    assert problem.work().bytes == 3 * 64 * 100 * 4
    fp8 = api.SiluAndMulProblem.of(
        "h200", dtype="bfloat16", hidden=100, tokens=64, out_dtype="float8_e4m3fn"
    )
    assert fp8.work().bytes == 5 * 64 * 100
    assert (
        "assumed 4096" in api.SiluAndMulProblem.of("cpu", dtype="float16", hidden=8).work().assumed
    )
