"""Public FP8 quantisation: values, checks, and how it behaves under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from attnhub.errors import InvalidArgument
from attnhub.quantization import fp8, reference, workloads

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BY_FP8 = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
BY_WIDE = pytest.mark.parametrize("wide", FLOATS, ids=str)
BY_AXIS = pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param((6, 3, 5), None, id="per-tensor"),
        pytest.param((6, 3, 5), 0, id="per-token"),
        pytest.param((6, 3, 5), -2, id="per-head-from-the-end"),
        pytest.param((6, 3, 5), 2, id="per-channel"),
        pytest.param((7,), 0, id="per-element"),
        pytest.param((0, 3, 5), 1, id="no-tokens"),
        pytest.param((2, 0), 0, id="empty-rows"),
    ],
)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtypes, shapes and bits; torch.equal does not know FP8 everywhere."""
    if a.dtype != b.dtype:
        return False
    bits = torch.uint8 if a.element_size() == 1 else a.dtype
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


@BY_FP8
@BY_WIDE
@BY_AXIS
def test_values(
    dtype: torch.dtype, wide: torch.dtype, shape: tuple[int, ...], axis: int | None
) -> None:
    x = normal(*shape, dtype=wide)
    stored, scale = attnhub.quantization.quantize_fp8(x, dtype, axis=axis)
    wanted, wanted_scale = reference.quantize(x, dtype, axis=axis)
    assert same(stored, wanted)
    assert same(scale, wanted_scale)
    halved, used = attnhub.quantization.quantize_fp8(x, dtype, axis=axis, scale=scale * 2)
    assert same(halved, reference.quantize(x, dtype, axis=axis, scale=scale * 2)[0])
    assert same(used, scale * 2)
    back = attnhub.quantization.dequantize_fp8(stored, scale, axis=axis, dtype=wide)
    assert same(back, reference.dequantize(stored, scale, axis=axis, dtype=wide))


def test_default_of_dequantize_is_float32() -> None:
    stored, scale = fp8.quantize_fp8(torch.tensor([224.0, -1.0]), E4M3)
    assert same(fp8.dequantize_fp8(stored, scale), torch.tensor([224.0, -1.0]))


def test_strided_input_and_out() -> None:
    x = normal(4, 6, 20)[:, ::2, 2:18]
    stored, scale = fp8.quantize_fp8(x.contiguous(), E4M3, axis=1)
    whole = torch.zeros(4, 3, 20, dtype=torch.uint8).view(E4M3)
    out = whole[..., 2:18]
    returned, strided_scale = fp8.quantize_fp8(x, E4M3, axis=1, out=out)
    assert returned is out
    assert same(out, stored)
    assert same(strided_scale, scale)
    assert not whole[..., :2].float().any()
    assert not whole[..., 18:].float().any()
    back = torch.empty(4, 3, 20)[..., 2:18]
    assert fp8.dequantize_fp8(out, scale, axis=1, out=back) is back
    assert same(back, reference.dequantize(stored, scale, axis=1))


def test_given_scale_is_returned_untouched() -> None:
    scale = torch.tensor(2.0)
    stored, used = fp8.quantize_fp8(torch.tensor([3.0, 1e6]), E5M2, scale=scale)
    assert used is scale
    assert scale.item() == 2.0
    assert stored.float().tolist() == [1.5, torch.finfo(E5M2).max]


# --- bad input ------------------------------------------------------------------------------------

X, STORED, SCALE = torch.ones(2, 4), torch.ones(2, 4).to(E4M3), torch.tensor(1.0)

BAD_LAYOUTS = [
    pytest.param(torch.tensor(1.0), None, r"has shape \[\], needs \[..., n\]", id="scalar"),
    pytest.param(torch.ones(4, 2).T, None, "has stride 2 in its last dimension", id="stride"),
    pytest.param(X, 2, r"axis=2, but .* has shape \[2, 4\]; give -2 to 1", id="axis-2"),
    pytest.param(X, -3, "axis=-3, but", id="axis--3"),
    pytest.param(X, 1.0, "axis=1.0, but", id="axis-float"),
    pytest.param(X, True, "axis=True, but", id="axis-bool"),
]


@pytest.mark.parametrize(("x", "axis", "message"), BAD_LAYOUTS)
def test_bad_layout_is_refused(x: torch.Tensor, axis: int | None, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{'' if 'axis' in message else 'x '}{message}"):
        fp8.quantize_fp8(x, E4M3, axis=axis)
    with pytest.raises(InvalidArgument, match=message):
        fp8.dequantize_fp8(x.to(E4M3), SCALE, axis=axis)


BAD_SCALES = [
    pytest.param(torch.ones(2), None, r"scale has shape \[2\]; with axis=None", id="per-tensor-2"),
    pytest.param(torch.ones(1), None, r"it needs \[\]", id="per-tensor-1"),
    pytest.param(torch.ones(4), 0, r"with axis=0 .* of shape \[2, 4\] it needs \[2\]", id="axis"),
    pytest.param(
        torch.ones(()).double(), None, "scale has dtype float64, needs float32", id="dtype"
    ),
    pytest.param(torch.ones((), device="meta"), None, "scale is on meta, but", id="device"),
    pytest.param(torch.ones(4)[::2], 0, "scale has stride 2", id="stride"),
    pytest.param(torch.ones(()).requires_grad_(), None, "forward only", id="grad"),
]


@pytest.mark.parametrize(("scale", "axis", "message"), BAD_SCALES)
def test_bad_scale_is_refused(scale: torch.Tensor, axis: int | None, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        fp8.quantize_fp8(X, E4M3, axis=axis, scale=scale)
    with pytest.raises(InvalidArgument, match=message):
        fp8.dequantize_fp8(STORED, scale, axis=axis)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t: t.half(), "out has dtype float16, needs", id="dtype"),
        pytest.param(lambda t: t[:1], r"out has shape \[1, 4\], needs \[2, 4\]", id="shape"),
        pytest.param(lambda t: t.to("meta"), "out is on meta, but", id="device"),
        pytest.param(
            lambda t: t.view(4, 2).T.reshape(2, 4).T.contiguous().T, "stride", id="stride"
        ),
    ],
)
def test_bad_out_is_refused(change: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        fp8.quantize_fp8(X, E4M3, out=change(STORED))
    with pytest.raises(InvalidArgument, match=message):
        fp8.dequantize_fp8(STORED, SCALE, out=change(X))


def test_bad_dtypes_are_refused() -> None:
    with pytest.raises(
        InvalidArgument, match=r"dtype=torch\.float16: give torch\.float8_e4m3fn or"
    ):
        fp8.quantize_fp8(X, torch.float16)
    with pytest.raises(InvalidArgument, match="x has dtype float64, needs float16 or bfloat16"):
        fp8.quantize_fp8(X.double(), E4M3)
    with pytest.raises(InvalidArgument, match="stored has dtype float32, needs float8_e4m3fn or"):
        fp8.dequantize_fp8(X, SCALE)
    with pytest.raises(InvalidArgument, match=r"dtype=torch\.float64: give torch\.float16,"):
        fp8.dequantize_fp8(STORED, SCALE, dtype=torch.float64)
    with pytest.raises(InvalidArgument, match="forward only"):
        fp8.quantize_fp8(X.clone().requires_grad_(), E4M3)


# --- as torch ops ---------------------------------------------------------------------------------

SAMPLES = [
    pytest.param(fp8._quantize_fp8, (X, None, STORED.clone(), torch.ones(()), None), id="fitted"),
    pytest.param(fp8._quantize_fp8, (X, None, STORED.clone(), torch.ones(4), 1), id="fitted-axis"),
    pytest.param(fp8._quantize_fp8, (X, SCALE, STORED.clone(), None, None), id="given"),
    pytest.param(fp8._dequantize_fp8, (STORED, torch.ones(2), X.clone(), 0), id="dequantize"),
]


# Not test_schema: it compares arguments by allclose, which torch lacks for FP8 on a CPU. The test
# after this one compares their bits.
OPCHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize(("op", "args"), SAMPLES)
def test_is_a_well_formed_op(op: Any, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.overload, args, test_utils=OPCHECKS)
    op.overload(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))


@pytest.mark.parametrize(("op", "args"), SAMPLES)
def test_changes_only_what_its_schema_says(op: Any, args: tuple[Any, ...]) -> None:
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    op.overload(*given)
    for before, after, declared in zip(args, given, op.overload._schema.arguments, strict=True):
        if isinstance(after, torch.Tensor) and declared.alias_info is None:
            assert same(after, before)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("axis", [None, 1])
def test_compiles_whole(axis: int | None, dynamic: bool) -> None:
    def there_and_back(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored, scale = fp8.quantize_fp8(x, E4M3, axis=axis)
        again, _ = fp8.quantize_fp8(x, E4M3, axis=axis, scale=scale)
        return stored, scale, again, fp8.dequantize_fp8(stored, scale, axis=axis, dtype=x.dtype)

    torch.compiler.reset()
    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (5, 6):
        x = normal(tokens, 3, 8, dtype=torch.bfloat16)
        assert all(same(g, w) for g, w in zip(compiled(x), there_and_back(x), strict=True))


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["quantize_fp8", "dequantize_fp8"])
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()


@pytest.mark.parametrize(
    ("facts", "reads"),
    [
        pytest.param({}, 2, id="fitted-to-all"),
        pytest.param({"scope": "first"}, 1, id="fitted-to-a-row"),
        pytest.param({"given_scale": True}, 1, id="given"),
    ],
)
def test_problem_tells_work(facts: dict[str, Any], reads: int) -> None:
    common = {"dtype": "bfloat16", "fp8": "float8_e4m3fn", "hidden": 128}
    problem = fp8.QuantizeFp8Problem.of("h200", tokens=64, **common, **facts)
    assert problem.work().bytes == 64 * 128 * (1 + 2 * reads)
    decision = attnhub.explain("quantization.dequantize_fp8", device="h200", **common)
    assert "assumed 4096" in decision.chosen.estimate.detail
