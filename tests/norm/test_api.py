"""The public norms: values, checks, and how they behave under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub.errors import InvalidArgument
from attnhub.norm import api, reference, workloads
from attnhub.testing.compare import assert_close

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [
    pytest.param((3, 128), id="rows"),
    pytest.param((111,), id="one-row-odd-hidden"),
    pytest.param((2, 3, 1), id="hidden-1-two-leading-axes"),
    pytest.param((0, 8), id="no-rows"),
]
BY_SHAPE = pytest.mark.parametrize("shape", SHAPES)
BY_DTYPE = pytest.mark.parametrize("dtype", FLOATS, ids=str)
EPS = 1e-4

# Each norm as a function of x, weight and `more`, its other tensor (residual or bias), returning
# every tensor it makes or changes.
Norm = Callable[..., list[torch.Tensor]]


def _fused(function: Callable[..., None]) -> Norm:
    def call(x: torch.Tensor, weight: torch.Tensor, more: torch.Tensor) -> list[torch.Tensor]:
        assert function(x, more, weight, eps=EPS) is None
        return [x, more]

    return call


CALLS: dict[str, Norm] = {
    "rmsnorm": lambda x, w, _, **out: [api.rmsnorm(x, w, eps=EPS, **out)],
    "gemma_rmsnorm": lambda x, w, _, **out: [api.gemma_rmsnorm(x, w, eps=EPS, **out)],
    "layernorm": lambda x, w, more, **out: [api.layernorm(x, w, more, eps=EPS, **out)],
    "layernorm_without_bias": lambda x, w, _, **out: [api.layernorm(x, w, eps=EPS, **out)],
    "fused_add_rmsnorm": _fused(api.fused_add_rmsnorm),
    "gemma_fused_add_rmsnorm": _fused(api.gemma_fused_add_rmsnorm),
}
FUSED = ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm"]
PURE = [name for name in CALLS if name not in FUSED]
BY_NAME = pytest.mark.parametrize("name", CALLS)


def expected(
    name: str, x: torch.Tensor, weight: torch.Tensor, more: torch.Tensor
) -> list[torch.Tensor]:
    x, weight, more = x.double(), weight.double(), more.double()
    bias = 1.0 if "gemma" in name else 0.0
    if name in FUSED:
        return list(reference.fused_add_rmsnorm(x, more, weight, eps=EPS, weight_bias=bias))
    if "rms" in name:
        return [reference.rmsnorm(x, weight, eps=EPS, weight_bias=bias)]
    return [reference.layernorm(x, weight, more if name == "layernorm" else None, eps=EPS)]


def inputs(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    more = shape if name in FUSED else shape[-1:]
    shapes = (shape, shape[-1:], more)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


@BY_NAME
@BY_SHAPE
@BY_DTYPE
def test_values(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = inputs(name, shape, dtype)
    wanted = expected(name, *given)
    kept = [t.clone() for t in given]
    for y, e in zip(CALLS[name](*given), wanted, strict=True):
        assert y.dtype == dtype
        assert_close(y, e)
    changed = (0, 2) if name in FUSED else ()
    assert all(torch.equal(given[i], kept[i]) for i in range(3) if i not in changed)


@pytest.mark.parametrize("name", PURE)
def test_out_may_be_strided_or_the_input(name: str) -> None:
    _, weight, bias = inputs(name, (16,))
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(1))[::2, 2:18]
    wanted = expected(name, x, weight, bias)[0]
    whole = torch.full((3, 20), torch.nan)
    out = whole[:, 2:18]
    assert CALLS[name](x, weight, bias, out=out)[0] is out
    assert_close(out, wanted)
    assert bool(whole[:, :2].isnan().all())
    assert bool(whole[:, 18:].isnan().all())
    assert CALLS[name](x, weight, bias, out=x)[0] is x
    assert_close(x, wanted)


@pytest.mark.parametrize("name", FUSED)
def test_fused_keeps_what_lies_between_strided_rows(name: str) -> None:
    weight = torch.ones(16)
    whole_x, whole_r = torch.ones(3, 20), torch.ones(3, 24)
    whole_x[:, 16:] = whole_r[:, 16:] = 7.0
    CALLS[name](whole_x[:, :16], weight, whole_r[:, :16])
    assert bool((whole_r[:, :16] == 2.0).all())
    assert bool((whole_x[:, 16:] == 7.0).all())
    assert bool((whole_r[:, 16:] == 7.0).all())


# --- bad input ------------------------------------------------------------------------------------


@BY_NAME
@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        pytest.param(torch.ones(()), None, r"x has shape \[\], needs \[..., hidden\]", id="scalar"),
        pytest.param(torch.ones(2, 0), None, "with hidden >= 1", id="empty-rows"),
        pytest.param(
            torch.ones(2, 8).double(), None, "x has dtype float64, needs float16", id="f64"
        ),
        pytest.param(torch.ones(2, 8).long(), None, "x has dtype int64, needs", id="int64"),
        pytest.param(torch.ones(8, 2).T, None, r"x has stride 2 .*x\.contiguous", id="x-stride"),
        pytest.param(torch.ones(2, 8).requires_grad_(), None, "forward only", id="x-grad"),
        pytest.param(
            None, torch.ones(7), r"weight has shape \[7\], needs \[8\]", id="weight-short"
        ),
        pytest.param(None, torch.ones(2, 8), r"weight has shape \[2, 8\]", id="weight-2d"),
        pytest.param(
            None, torch.ones(8).half(), "weight has dtype float16, needs float32", id="dtype"
        ),
        pytest.param(
            None, torch.ones(8, device="meta"), "weight is on meta, but x is on cpu", id="device"
        ),
        pytest.param(None, torch.ones(16)[::2], "weight has stride 2", id="weight-stride"),
        pytest.param(None, torch.ones(8).requires_grad_(), "forward only", id="weight-grad"),
    ],
)
def test_bad_rows_are_refused(
    name: str, x: torch.Tensor | None, weight: torch.Tensor | None, message: str
) -> None:
    good_x, good_weight, more = inputs(name, (2, 8))
    x = good_x if x is None else x
    weight = good_weight if weight is None else weight
    with pytest.raises(InvalidArgument, match=message):
        CALLS[name](x, weight, more)


@pytest.mark.parametrize("name", [*PURE, *FUSED])
@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        pytest.param((2, 7), None, r"has shape \[2, 7\], needs \[2, 8\]", id="shape"),
        pytest.param((2, 8), torch.Tensor.half, "has dtype float16, needs float32", id="dtype"),
        pytest.param(
            (2, 8), lambda t: t.to("meta"), "is on meta, but x is on cpu; move one", id="device"
        ),
        pytest.param((8, 2), torch.Tensor.t, "has stride 2 in its last dimension", id="stride"),
    ],
)
def test_bad_out_or_residual_is_refused(
    name: str, shape: tuple[int, int], change: Callable[..., torch.Tensor] | None, message: str
) -> None:
    x, weight, more = inputs(name, (2, 8))
    other = torch.ones(shape) if change is None else change(torch.ones(shape))
    argument = "residual" if name in FUSED else "out"
    rest, out = ((other,), {}) if name in FUSED else ((more,), {"out": other})
    with pytest.raises(InvalidArgument, match=f"{argument} {message}"):
        CALLS[name](x, weight, *rest, **out)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        pytest.param(torch.ones(7), r"bias has shape \[7\], needs \[8\]", id="shape"),
        pytest.param(torch.ones(8).half(), "bias has dtype float16, needs float32", id="dtype"),
        pytest.param(torch.ones(8, device="meta"), "bias is on meta", id="device"),
        pytest.param(torch.ones(16)[::2], "bias has stride 2", id="stride"),
    ],
)
def test_bad_bias_is_refused(bias: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.layernorm(torch.ones(2, 8), torch.ones(8), bias)


# --- as torch ops ---------------------------------------------------------------------------------

X, WEIGHT = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.ones(8)
SAMPLES = [
    pytest.param(api._rmsnorm, (X, WEIGHT, torch.empty(3, 8), EPS, 1.0), id="rmsnorm"),
    pytest.param(api._fused_add_rmsnorm, (X, X.clone(), WEIGHT, EPS, 0.0), id="fused_add_rmsnorm"),
    pytest.param(api._layernorm, (X, WEIGHT, WEIGHT, torch.empty(3, 8), EPS), id="layernorm"),
    pytest.param(api._layernorm, (X, WEIGHT, None, torch.empty(3, 8), EPS), id="without-bias"),
]


@pytest.mark.parametrize(("op", "args"), SAMPLES)
def test_is_a_well_formed_op(op: Any, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.overload, args)
    op.overload(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))


@BY_NAME
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(name: str, dynamic: bool) -> None:
    torch.compiler.reset()
    function = CALLS[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        given = inputs(name, (tokens, 8), torch.bfloat16)
        copies = [t.clone() for t in given]
        for y, e in zip(compiled(*given), function(*copies), strict=True):
            assert torch.equal(y, e)
        assert all(torch.equal(g, c) for g, c in zip(given, copies, strict=True))


@pytest.mark.parametrize("name", PURE)
def test_compiles_with_the_input_as_out(name: str) -> None:
    torch.compiler.reset()
    x, weight, more = inputs(name, (3, 8))
    wanted = CALLS[name](x, weight, more)[0]

    def in_place(x: torch.Tensor, weight: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return CALLS[name](x, weight, more, out=x)[0] * 2

    compiled = torch.compile(in_place, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, more), wanted * 2)
    assert torch.equal(x, wanted)


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rmsnorm", "fused_add_rmsnorm", "layernorm"])
def test_workloads_compute_their_op(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, seen = getattr(api, name), []

    def spy(*tensors: torch.Tensor, **out: torch.Tensor) -> Any:
        wide = [t.double() for t in tensors]
        y = function(*tensors, **out)
        seen.append((wide, [y] if name not in FUSED else tensors[:2]))
        return y

    monkeypatch.setattr(api, name, spy)
    small = [workload for workload in getattr(workloads, name) if "small" in workload.tags]
    for workload in small:
        workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))()
        given, results = seen.pop()
        assert given[0].shape == (workload.facts["tokens"], workload.facts["hidden"])
        wanted = getattr(reference, name)(*given)
        for y, e in zip(results, wanted if name in FUSED else [wanted], strict=True):
            assert y.dtype == torch.bfloat16
            assert_close(y, e)
    assert len(small) == 2


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize("name", ["rmsnorm", "fused_add_rmsnorm", "layernorm"])
def test_explain_needs_no_tensors(name: str) -> None:
    decision = attnhub.explain(f"norm.{name}", device="h200", dtype="bfloat16", hidden=4096)
    assert decision.chosen.name == "reference"
    assert "assumed 4096" in decision.chosen.estimate.detail


def test_a_strided_output_is_a_fact_of_the_problem() -> None:
    """A kernel that trusts ``contiguous`` must not be handed a strided output or residual."""
    x, strided = torch.randn(4, 8), torch.randn(4, 16)[:, :8]
    assert api._facts(x, x)["contiguous"] is True
    assert api._facts(x, strided)["contiguous"] is False
    assert api._facts(strided, x)["contiguous"] is False


def test_the_residual_may_not_be_the_input() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(InvalidArgument, match="x and residual are the same memory"):
        api.fused_add_rmsnorm(x, x, torch.ones(8))
