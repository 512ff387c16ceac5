"""The public rotations: values, checks, and how they behave under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import attnhub
from attnhub import Rope
from attnhub.errors import InvalidArgument
from attnhub.rope import api, reference, workloads
from attnhub.rope.problem import ApplyRopeCosSinProblem, ApplyRopeProblem
from attnhub.testing.compare import assert_close
from attnhub.variant.rope import LinearScaling, Llama3Scaling, YarnScaling

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)
ROPES = [
    pytest.param(Rope(), id="plain"),
    pytest.param(Rope(interleaved=True), id="interleaved"),
    pytest.param(Rope(theta=5e5, rotary_dim=6), id="partial-no-power-of-two"),
    pytest.param(Rope(scaling=LinearScaling(factor=2)), id="linear"),
    pytest.param(Rope(theta=5e5, scaling=LLAMA3), id="llama3"),
    pytest.param(
        Rope(interleaved=True, scaling=YarnScaling(factor=4, original_max_position=4096)),
        id="yarn",
    ),
]
BY_ROPE = pytest.mark.parametrize("rope", ROPES)
MAX_POSITION = 5000
POSITIONS = [0, 4999, 3, 3, 1]


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = normal(5, 4, 16, dtype=dtype), normal(5, 2, 16, dtype=dtype, seed=1)
    return q, k, torch.tensor(POSITIONS, dtype=torch.int32)


def table(rope: Rope) -> torch.Tensor:
    return attnhub.rope.cos_sin_cache(MAX_POSITION, 16, rope)


def forms(rope: Rope) -> list[tuple[Callable[..., Any], Callable[..., None], tuple[Any, ...]]]:
    """(new tensors, in place, what follows the positions) of both ways to say ``rope``."""

    def looked_up(q: Any, k: Any, p: Any, c: Any, **out: Any) -> Any:
        return api.apply_rope_cos_sin(q, k, p, c, interleaved=rope.interleaved, **out)

    def looked_up_(q: Any, k: Any, p: Any, c: Any) -> None:
        api.apply_rope_cos_sin_(q, k, p, c, interleaved=rope.interleaved)

    return [
        (api.apply_rope, api.apply_rope_, (rope,)),
        (looked_up, looked_up_, (table(rope),)),
    ]


@BY_ROPE
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values(rope: Rope, dtype: torch.dtype) -> None:
    q, k, positions = inputs(dtype)
    before = q.clone(), k.clone()
    for function, _, rest in forms(rope):
        for y, x in zip(function(q, k, positions, *rest), (q, k), strict=True):
            assert y.dtype == dtype
            assert_close(y, reference.apply_rope(x.double(), positions, rope), dtype=dtype)
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


@BY_ROPE
def test_out_in_place_and_strides(rope: Rope) -> None:
    _, _, positions = inputs()
    for function, in_place, rest in forms(rope):
        qkv = normal(5, 8, 20)
        q, k = qkv[:, :4, 2:18], qkv[:, 4:6, 2:18]
        expected = function(q.contiguous(), k.contiguous(), positions, *rest)
        whole = torch.full((5, 8, 20), torch.nan)
        out = whole[:, 1:5, 4:], whole[:, 5:7, 4:]
        returned = function(q, k, positions, *rest, out=out)
        untouched = qkv.clone()
        assert in_place(q, k, positions, *rest) is None
        for i in range(2):
            assert returned[i] is out[i]
            assert torch.equal(out[i], expected[i])
            assert torch.equal((q, k)[i], expected[i])
        assert bool(whole[..., :4].isnan().all())
        assert torch.equal(qkv[:, 6:], untouched[:, 6:])
        assert torch.equal(qkv[..., :2], untouched[..., :2])
        assert torch.equal(qkv[..., 18:], untouched[..., 18:])


def test_no_tokens() -> None:
    positions = torch.empty(0, dtype=torch.int32)
    for function, in_place, rest in forms(Rope()):
        q, k = function(normal(0, 4, 16), normal(0, 2, 16), positions, *rest)
        assert q.shape == (0, 4, 16)
        assert k.shape == (0, 2, 16)
        in_place(q, k, positions, *rest)


def test_positions_may_be_negative_without_a_table() -> None:
    q, k, positions = inputs()
    turned, _ = api.apply_rope(q, k, positions - 10, Rope())
    assert_close(turned, reference.apply_rope(q.double(), positions - 10, Rope()))


# --- bad input ------------------------------------------------------------------------------------

BAD_TENSORS = [
    pytest.param({"q": normal(5, 64)}, r"q has shape \[5, 64\], needs \[tokens", id="q-2d"),
    pytest.param({"q": normal(5, 4, 0)}, "dim >= 1", id="no-elements"),
    pytest.param({"q": normal(5, 4, 16).double()}, "q has dtype float64, needs", id="q-float64"),
    pytest.param({"q": normal(5, 4, 32)[..., ::2]}, "q has stride 2", id="q-stride"),
    pytest.param({"q": normal(5, 4, 16).requires_grad_()}, "forward only", id="q-grad"),
    pytest.param(
        {"k": normal(5, 2, 16).half()}, "k has dtype float16, needs float32", id="k-dtype"
    ),
    pytest.param(
        {"k": normal(4, 2, 16)}, r"k has shape \[4, 2, 16\], needs \[5, kv_heads, 16\]", id="k-rows"
    ),
    pytest.param({"k": normal(5, 2, 8)}, r"needs \[5, kv_heads, 16\]", id="k-dim"),
    pytest.param({"k": normal(5, 16)}, r"needs \[5, kv_heads, 16\]", id="k-2d"),
    pytest.param(
        {"k": normal(5, 2, 16).to("meta")}, "k is on meta, but q is on cpu", id="k-device"
    ),
    pytest.param({"k": normal(5, 2, 32)[..., ::2]}, "k has stride 2", id="k-stride"),
    pytest.param(
        {"positions": torch.zeros(5, dtype=torch.int64)},
        r"int64, needs int32; use positions\.to\(torch\.int32\)",
        id="positions-int64",
    ),
    pytest.param(
        {"positions": torch.zeros(4, dtype=torch.int32)},
        r"positions has shape \[4\], needs \[5\]",
        id="positions-short",
    ),
    pytest.param(
        {"positions": torch.zeros(10, dtype=torch.int32)[::2]},
        "not contiguous",
        id="positions-stride",
    ),
    pytest.param(
        {"positions": torch.zeros(5, dtype=torch.int32, device="meta")},
        "positions is on meta",
        id="positions-device",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD_TENSORS)
def test_bad_tensors_are_refused(changed: dict[str, torch.Tensor], message: str) -> None:
    given = dict(zip(("q", "k", "positions"), inputs(), strict=True)) | changed
    for function, in_place, rest in forms(Rope()):
        for call in (function, in_place):
            with pytest.raises(InvalidArgument, match=message):
                call(*given.values(), *rest)


@pytest.mark.parametrize(
    ("index", "out", "message"),
    [
        pytest.param(0, torch.empty(5, 4, 8), r"out\[0\] has shape \[5, 4, 8\]", id="q-shape"),
        pytest.param(1, torch.empty(5, 2, 16).half(), r"out\[1\] has dtype float16", id="k-dtype"),
        pytest.param(
            1, torch.empty(5, 2, 16, device="meta"), r"out\[1\] is on meta", id="k-device"
        ),
        pytest.param(0, torch.empty(5, 4, 32)[..., ::2], r"out\[0\] has stride 2", id="q-stride"),
    ],
)
def test_bad_out_is_refused(index: int, out: torch.Tensor, message: str) -> None:
    q, k, positions = inputs()
    pair = [torch.empty_like(q), torch.empty_like(k)]
    pair[index] = out
    for function, _, rest in forms(Rope()):
        with pytest.raises(InvalidArgument, match=message):
            function(q, k, positions, *rest, out=tuple(pair))


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        pytest.param(Rope(rotary_dim=18), "turns 18 elements, but a head has 16", id="wide"),
        pytest.param({"theta": 1e4}, "of type dict; give an attnhub.Rope", id="no-rope"),
        pytest.param(
            Rope(theta=0.5, scaling=YarnScaling(factor=4, original_max_position=64)),
            "theta=0.5: YaRN needs",
            id="base",
        ),
    ],
)
def test_bad_rope_is_refused(rope: Any, message: str) -> None:
    q, k, positions = inputs()
    with pytest.raises(InvalidArgument, match=message):
        api.apply_rope(q, k, positions, rope)
    with pytest.raises(InvalidArgument, match=message):
        api.apply_rope_(q, k, positions, rope)
    with pytest.raises(InvalidArgument, match=message):
        attnhub.rope.cos_sin_cache(8, 16, rope)


def test_odd_head_cannot_turn_whole() -> None:
    q, k, positions = normal(5, 4, 15), normal(5, 2, 15), inputs()[2]
    with pytest.raises(InvalidArgument, match=r"head of 15 elements.*Rope\(rotary_dim="):
        api.apply_rope(q, k, positions, Rope())
    turned, _ = api.apply_rope(q, k, positions, Rope(rotary_dim=14))
    assert torch.equal(turned[..., 14], q[..., 14])


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        pytest.param(
            torch.zeros(9, 16).half(), "cache has dtype float16, needs float32", id="dtype"
        ),
        pytest.param(torch.zeros(9, 7), r"shape \[9, 7\].*even rotary_dim from 2 to", id="odd"),
        pytest.param(torch.zeros(9, 18), "the head's 16; make it with", id="wide"),
        pytest.param(torch.zeros(9, 0), "from 2 to", id="no-columns"),
        pytest.param(torch.zeros(16), r"\[max_position, rotary_dim\]", id="1d"),
        pytest.param(torch.zeros(9, 16, device="meta"), "cache is on meta", id="device"),
        pytest.param(torch.zeros(16, 9)[:8].T, "cache has stride 9", id="stride"),
        pytest.param(
            torch.zeros(4999, 16), r"positions\[1\] is 4999, needs 0 to 4998", id="one-row-short"
        ),
    ],
)
def test_bad_table_is_refused(cache: torch.Tensor, message: str) -> None:
    for function in (api.apply_rope_cos_sin, api.apply_rope_cos_sin_):
        with pytest.raises(InvalidArgument, match=message):
            function(*inputs(), cache)


def test_negative_position_has_no_row() -> None:
    q, k, positions = inputs()
    with pytest.raises(InvalidArgument, match=r"positions\[0\] is -1"):
        api.apply_rope_cos_sin(q, k, positions - 1, table(Rope()))


# --- as torch ops ---------------------------------------------------------------------------------


@BY_ROPE
def test_are_well_formed_ops(rope: Rope) -> None:
    q, k, positions = inputs()
    out = torch.empty_like(q), torch.empty_like(k)
    samples = [
        (api._apply_rope.overload, (q, k, positions, *out, rope.to_json())),
        (
            api._apply_rope_cos_sin.overload,
            (q, k, positions, table(rope), *out, rope.interleaved),
        ),
    ]
    for overload, args in samples:
        torch.library.opcheck(overload, args)
        overload(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_whole(dynamic: bool) -> None:
    """One compiled function serves several rotations: the rotation is guarded, not baked in."""

    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)

    direct, table_based = compiled(api.apply_rope), compiled(api.apply_rope_cos_sin)
    q, k, positions = inputs(torch.bfloat16)
    for rope in (Rope(), Rope(theta=5e5, scaling=LLAMA3), Rope(interleaved=True)):
        expected = api.apply_rope(q, k, positions, rope)
        looked_up = table_based(q, k, positions, table(rope), interleaved=rope.interleaved)
        for i, y in enumerate(direct(q, k, positions, rope)):
            assert torch.equal(y, expected[i])
            assert torch.equal(looked_up[i], expected[i])


@pytest.fixture
def fresh_dynamo() -> None:
    """Forget what was compiled: each code object may be compiled a few times only."""
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@BY_ROPE
def test_compile_in_place_on_a_packed_projection(rope: Rope) -> None:
    for _, in_place, rest in forms(rope):

        def step(
            qkv: torch.Tensor, *rest: Any, in_place: Callable[..., None] = in_place
        ) -> torch.Tensor:
            q, k, _ = qkv.split([4, 2, 2], dim=1)
            in_place(q, k, *rest)
            return q * 2

        given = normal(5, 8, 16)
        expected = given.clone()
        doubled = step(expected, inputs()[2], *rest)
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(given, inputs()[2], *rest), doubled)
        assert torch.equal(given, expected)


# --- facts ----------------------------------------------------------------------------------------


def test_rotation_reads_back_from_its_text() -> None:
    for param in ROPES:
        (rope,) = param.values
        assert api._parsed(rope.to_json()) == rope


@pytest.mark.usefixtures("isolated_registry")
def test_problem_knows_the_rotation() -> None:
    rope = Rope(theta=5e5, rotary_dim=64, scaling=LLAMA3)
    sizes = {"dtype": "bfloat16", "num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    problem = ApplyRopeProblem.of("h200", rope=rope, tokens=100, **sizes)
    assert (problem.rotary_dim, problem.scaling, problem.interleaved) == (64, "llama3", False)
    assert problem.work().bytes == 2 * 128 * 40 * 128 * 2
    other = ApplyRopeProblem.of("h200", rope=replace(rope, theta=1e4), tokens=100, **sizes)
    assert problem.signature() != other.signature()
    whole = ApplyRopeProblem.of("h200", interleaved=True, **sizes)
    assert (whole.rotary_dim, whole.rope) == (128, Rope(interleaved=True))
    looked_up = ApplyRopeCosSinProblem.of("h200", rotary_dim=64, **sizes)
    assert "assumed 4096" in looked_up.work().assumed
    decision = attnhub.explain("rope.apply_rope", device="h200", rope=rope, **sizes)
    assert decision.chosen.name == "reference"


@pytest.mark.parametrize("name", ["apply_rope", "apply_rope_cos_sin"])
def test_workloads_run(name: str) -> None:
    for workload in getattr(workloads, name):
        if "small" in workload.tags:
            generator = torch.Generator().manual_seed(0)
            turned = workload.make(torch.device("cpu"), generator)()
            (rope,) = (r for *_, r, _ in workloads._CASES if str(r) == workload.facts["rope"])
            same, tokens = torch.Generator().manual_seed(0), workload.facts["tokens"]
            for y, heads in zip(turned, ("num_qo_heads", "num_kv_heads"), strict=True):
                shape = tokens, workload.facts[heads], workload.facts["head_dim"]
                x = torch.randn(shape, generator=same).bfloat16()
                wanted = reference.apply_rope(x.double(), torch.arange(tokens), rope)
                assert_close(y, wanted, dtype=torch.bfloat16)
                assert not torch.equal(y, x)
