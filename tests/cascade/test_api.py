"""The public merges: values, checks, and how they behave under torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub.cascade import api, workloads
from attnhub.errors import InvalidArgument
from attnhub.testing.compare import assert_close

INF = math.inf
FLOATS = [torch.float16, torch.bfloat16, torch.float32]
State = tuple[torch.Tensor, torch.Tensor]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def states(n: int, tokens: int = 5, dtype: torch.dtype = torch.float32) -> State:
    """o [tokens, n, 3, 8] and lse [tokens, n, 3]; some saw no key and hold NaN."""
    o, lse = normal(tokens, n, 3, 8).to(dtype), 3 * normal(tokens, n, 3, seed=1)
    empty = normal(tokens, n, 3, seed=2) < -1
    if tokens:
        empty[0] = True
        empty[-1] = False
    return o.masked_fill(empty[..., None], torch.nan), lse.masked_fill(empty, -INF)


def merged(o: torch.Tensor, lse: torch.Tensor) -> State:
    """The same in float64, by numerator and denominator."""
    weights = lse.double().exp()
    total = weights.sum(1)
    values = o.double().nan_to_num(0.0)
    numerator = (weights[..., None] * values).sum(1)
    return (numerator / total[..., None]).nan_to_num(0.0), total.log()


def assert_merged(actual: State, expected: State) -> None:
    assert_close(actual[0], expected[0], name="o")
    assert actual[1].dtype == torch.float32
    assert_close(actual[1], expected[1], kind="lse", name="lse")


def pair(tokens: int = 5, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    o, lse = states(2, tokens, dtype)
    return tuple(x.contiguous() for x in (o[:, 0], lse[:, 0], o[:, 1], lse[:, 1]))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("tokens", [5, 1, 0], ids=["5-one-row-all-empty", "1", "none"])
def test_merge_state(dtype: torch.dtype, tokens: int) -> None:
    given = pair(tokens, dtype)
    before = [x.clone() for x in given]
    o, lse = api.merge_state(*given)
    assert o.dtype == dtype
    assert_merged((o, lse), merged(*states(2, tokens, dtype)))
    for x, old in zip(given, before, strict=True):
        assert torch.equal(x.nan_to_num(), old.nan_to_num())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "n",
    [
        pytest.param(0, id="0-no-states"),
        pytest.param(1, id="1-nothing-to-merge"),
        pytest.param(2, id="2"),
        pytest.param(7, id="7-odd"),
    ],
)
def test_merge_states(n: int, dtype: torch.dtype) -> None:
    o, lse = states(n, dtype=dtype)
    assert_merged(api.merge_states(o, lse), merged(o, lse))


def test_merge_states_without_tokens() -> None:
    o, lse = api.merge_states(*states(3, tokens=0))
    assert o.shape == (0, 3, 8)
    assert lse.shape == (0, 3)


@pytest.mark.parametrize("which", ["new", "first state", "second state", "strided"])
def test_merge_state_out(which: str) -> None:
    o_a, lse_a, o_b, lse_b = pair()
    out = {
        "new": (torch.full_like(o_a, torch.nan), torch.full_like(lse_a, torch.nan)),
        "first state": (o_a, lse_a),
        "second state": (o_b, lse_b),
        "strided": (
            torch.full((5, 6, 9), torch.nan)[:, ::2, :8],
            torch.full((9, 3), torch.nan)[::2],
        ),
    }[which]
    got = api.merge_state(o_a, lse_a, o_b, lse_b, out=out)
    assert got[0] is out[0]
    assert got[1] is out[1]
    assert_merged(out, merged(*states(2)))


def test_merge_states_out_and_strided_states() -> None:
    o, lse = states(4)
    strided = (
        o.transpose(1, 2).contiguous().transpose(1, 2),
        lse[:, [0, 0, 1, 1, 2, 2, 3, 3]][:, ::2],
    )
    out = torch.full((5, 3, 8), torch.nan), torch.full((5, 3), torch.nan)
    assert api.merge_states(*strided, out=out)[0] is out[0]
    assert_merged(out, merged(o, lse))


def test_merge_state_in_place() -> None:
    o, lse, o_b, lse_b = pair()
    addresses = o.data_ptr(), lse.data_ptr()
    api.merge_state_(o, lse, o_b, lse_b)
    assert (o.data_ptr(), lse.data_ptr()) == addresses
    assert_merged((o, lse), merged(*states(2)))


def test_mask_leaves_rows_as_they_are() -> None:
    o, lse, o_b, lse_b = pair()
    mask = torch.tensor([True, False, True, False, True])
    # A row that is masked away may hold anything on the other side.
    o_b[1], lse_b[1], o_b[3], lse_b[3] = torch.nan, torch.nan, INF, INF
    before = o.clone(), lse.clone()
    api.merge_state_(o, lse, o_b, lse_b, mask=mask)
    for x, old in zip((o, lse), before, strict=True):
        assert torch.equal(x[~mask].nan_to_num(), old[~mask].nan_to_num())
    whole = merged(*states(2))
    assert_merged((o[mask], lse[mask]), (whole[0][mask], whole[1][mask]))


# --- checks ---------------------------------------------------------------------------------------

BAD_STATES = [
    pytest.param(
        0, torch.ones(5, 3, 8, dtype=torch.int32), "has dtype int32, needs float16 or", id="o-int32"
    ),
    pytest.param(0, normal(5, 3), r"has shape \[5, 3\], needs \[tokens, heads, dim\]", id="o-2-D"),
    pytest.param(0, normal(5, 3, 0), "with dim >= 1", id="o-dim-0"),
    pytest.param(0, normal(5, 8, 3).mT, r"stride 3 .*\.contiguous\(\)", id="o-stride"),
    pytest.param(0, normal(5, 3, 8).requires_grad_(), "forward only", id="o-needs-grad"),
    pytest.param(1, normal(5, 2), r"lse\w* has shape \[5, 2\], needs \[5, 3\]", id="lse-shape"),
    pytest.param(
        1, normal(5, 3).half(), r"lse\w* has dtype float16, needs float32", id="lse-dtype"
    ),
    pytest.param(1, normal(3, 5).T, r"lse\w* has stride 5", id="lse-stride"),
    pytest.param(
        2, normal(5, 2, 8), r"o_b has shape \[5, 2, 8\], needs \[5, 3, 8\]", id="o_b-shape"
    ),
    pytest.param(2, normal(5, 3, 8).half(), "o_b has dtype float16, needs float32", id="o_b-dtype"),
    pytest.param(
        3,
        torch.empty(5, 3, device="meta"),
        "lse_b is on meta, but the first state is on cpu",
        id="lse_b-device",
    ),
]


@pytest.mark.parametrize(("at", "bad", "message"), BAD_STATES)
@pytest.mark.parametrize("name", ["merge_state", "merge_state_"])
def test_bad_states_are_refused(name: str, at: int, bad: torch.Tensor, message: str) -> None:
    given = list(pair())
    given[at] = bad
    with pytest.raises(InvalidArgument, match=message):
        getattr(api, name)(*given)


@pytest.mark.parametrize(
    ("o", "lse", "message"),
    [
        pytest.param(
            normal(5, 3, 8),
            normal(5, 3),
            r"needs \[tokens, n, heads, dim\]",
            id="no-axis-of-states",
        ),
        pytest.param(
            normal(5, 2, 3, 8), normal(5, 3, 2), r"lse .* needs \[5, 2, 3\]", id="lse-axes"
        ),
    ],
)
def test_bad_stacks_are_refused(o: torch.Tensor, lse: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.merge_states(o, lse)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        pytest.param((normal(5, 3, 4), normal(5, 3)), r"o of out .* needs \[5, 3, 8\]", id="shape"),
        pytest.param(
            (normal(5, 3, 8), normal(5, 3).half()), "lse of out has dtype float16", id="lse-dtype"
        ),
    ],
)
def test_bad_out_is_refused(out: State, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.merge_state(*pair(), out=out)
    with pytest.raises(InvalidArgument, match=message):
        api.merge_states(*states(2), out=out)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        pytest.param(torch.ones(5), "mask has dtype float32, needs bool", id="dtype"),
        pytest.param(torch.ones(4) > 0, r"mask has shape \[4\], needs \[5\]", id="shape"),
        pytest.param(
            torch.empty(5, dtype=torch.bool, device="meta"),
            "mask is on meta, but o is",
            id="device",
        ),
        pytest.param((torch.ones(10) > 0)[::2], r"mask has stride 2", id="stride"),
    ],
)
def test_bad_mask_is_refused(mask: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        api.merge_state_(*pair(), mask=mask)


# --- as torch ops ---------------------------------------------------------------------------------

OPS: dict[str, tuple[Any, ...]] = {
    "merge_state": (*pair(), torch.empty(5, 3, 8), torch.empty(5, 3)),
    "merge_state_in_place": (*pair(), torch.tensor([True, False, True, True, False])),
    "merge_states": (*states(3), torch.empty(5, 3, 8), torch.empty(5, 3)),
}


@pytest.mark.parametrize("name", OPS)
def test_is_a_well_formed_op(name: str) -> None:
    overload = getattr(api, f"_{name}").overload
    # NaN differs from itself, and opcheck compares what the op left alone.
    finite = tuple(x.nan_to_num() if x.is_floating_point() else x for x in OPS[name])
    torch.library.opcheck(overload, finite)
    overload(*(x.to("meta") for x in OPS[name]))


def everything(o: torch.Tensor, lse: torch.Tensor, mask: torch.Tensor) -> State:
    """All three merges after one another."""
    o_a, lse_a = attnhub.cascade.merge_state(o[:, 0], lse[:, 0], o[:, 1], lse[:, 1])
    attnhub.cascade.merge_state_(o_a, lse_a, o[:, 2], lse[:, 2], mask=mask)
    out = torch.stack([o_a, o[:, 3]], 1), torch.stack([lse_a, lse[:, 3]], 1)
    return attnhub.cascade.merge_states(*out)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(dynamic: bool) -> None:
    torch.compiler.reset()
    compiled: Callable[..., State] = torch.compile(
        everything, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for tokens in (5, 6):
        given = (*states(4, tokens), normal(tokens) > 0)
        for got, want in zip(compiled(*given), everything(*given), strict=True):
            assert torch.equal(got, want)


# --- workloads and problems -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            run = workload.make(torch.device("cpu"), torch.Generator().manual_seed(0))
            o, lse = run()
            facts = workload.facts
            assert o.shape == (facts["tokens"], facts["heads"], facts["dim"])
            assert bool(o.isfinite().all())
            assert not bool(lse.isnan().any())


@pytest.mark.usefixtures("isolated_registry")
def test_problems_tell_work() -> None:
    facts = {"dtype": "bfloat16", "num_heads": 2, "head_dim": 64}
    problem = api.MergeStatesProblem.of("h200", **facts, num_states=7, tokens=16)
    assert problem.work().bytes == 8 * 16 * 2 * (64 * 2 + 4)
    for name in ("merge_state", "merge_state_in_place"):
        decision = attnhub.explain(f"cascade.{name}", device="h200", **facts)
        assert decision.chosen.name == "reference"
        assert "assumed 128" in decision.chosen.estimate.detail
