"""The merge kernels in the emulator, by their host side, against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.cascade import reference
from attnhub.kernels.merge import ManyStatesMerge, TwoStatesMerge, specs
from attnhub.testing.compare import assert_close
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import seeded

State = tuple[Tensor, Tensor]

#: (dtype, head_dim): what is special about how lanes share its rows.
ROWS = [
    pytest.param("bfloat16", 128, id="bfloat16-128"),  # 8 lanes, two chunks each
    pytest.param("float16", 64, id="float16-64"),
    pytest.param("float32", 256, id="float32-256"),  # a warp to a row
    pytest.param("float16", 96, id="float16-96"),  # lanes without a second chunk
    pytest.param("bfloat16", 8, id="bfloat16-8"),  # a row to a lane, which has one chunk
    pytest.param("float32", 520, id="float32-520"),  # three steps, the last of one lane
]


def states(tokens: int, count: int, heads: int, dtype: str, dim: int) -> State:
    """Random states; of token 0 none saw a key, of token 1 the first, and what did not is NaN."""
    generator = seeded(tokens + count + dim)
    o = torch.randn(tokens, count, heads, dim, generator=generator)
    lse = 3 * torch.randn(tokens, count, heads, generator=generator)
    lse[torch.rand(lse.shape, generator=generator) < 1 / 8] = -math.inf
    lse[0:1], lse[1:2, :1] = -math.inf, -math.inf
    lse[2:3] -= 60000
    o[lse == -math.inf] = math.nan
    return o.to(getattr(torch, dtype)), lse


def two(*shape: Any) -> tuple[Tensor, ...]:
    """``o_a, lse_a, o_b, lse_b`` of :func:`states`."""
    o, lse = states(shape[0], 2, *shape[1:])
    return tuple(x.contiguous() for x in (o[:, 0], lse[:, 0], o[:, 1], lse[:, 1]))


def nowhere(o: Tensor, lse: Tensor) -> State:
    return torch.full_like(o, math.nan), torch.full_like(lse, math.nan)


def check(actual: State, expected: State) -> None:
    assert_close(actual[0], expected[0], name="o")
    assert_close(actual[1], expected[1], kind="lse", name="lse")


def merge_two(gpu: EmulatedGpu, dtype: str, heads: int, dim: int) -> TwoStatesMerge:
    return TwoStatesMerge(gpu.device, dtype=dtype, num_heads=heads, head_dim=dim)


def merge_many(gpu: EmulatedGpu, dtype: str, heads: int, dim: int) -> ManyStatesMerge:
    return ManyStatesMerge(gpu.device, dtype=dtype, num_heads=heads, head_dim=dim)


@pytest.mark.parametrize(("dtype", "dim"), ROWS)
@pytest.mark.parametrize(
    ("tokens", "heads"),
    [
        pytest.param(1, 1, id="a row"),
        pytest.param(5, 7, id="an odd number of rows"),
        pytest.param(150, 3, id="more rows than the grid has"),
    ],
)
def test_two_states(
    emulated_gpu: EmulatedGpu, dtype: str, dim: int, tokens: int, heads: int
) -> None:
    given = two(tokens, heads, dtype, dim)
    out = nowhere(*given[:2])
    merge_two(emulated_gpu, dtype, heads, dim)(*given, *out)
    check(out, reference.merge_state(*given))


@pytest.mark.parametrize(("dtype", "dim"), ROWS)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(0, id="none"),
        pytest.param(1, id="1"),
        pytest.param(2, id="2"),
        pytest.param(3, id="3-less than are loaded at once"),
        pytest.param(33, id="33-all but one loaded in full rounds"),
        pytest.param(200, id="200"),
    ],
)
def test_many_states(emulated_gpu: EmulatedGpu, dtype: str, dim: int, count: int) -> None:
    o, lse = states(5, count, 3, dtype, dim)
    out = nowhere(o.new_empty(5, 3, dim), lse.new_empty(5, 3))
    merge_many(emulated_gpu, dtype, 3, dim)(o, lse, *out)
    check(out, reference.merge_states(o, lse))


@pytest.mark.parametrize(("dtype", "dim"), ROWS)
@pytest.mark.parametrize("seed", [0, 1], ids=["in turn", "in any order"])
def test_warps_share_the_states_of_a_row(
    monkeypatch: pytest.MonkeyPatch, dtype: str, dim: int, seed: int
) -> None:
    """As on a device that is too large for the rows; on a small one no warps do."""
    o, lse = states(9, 70, 2, dtype, dim)
    expected = reference.merge_states(o, lse)
    grids = {}
    for num_sms in (1, 64):
        gpu = EmulatedGpu(num_sms=num_sms, seed=seed)
        out = nowhere(o.new_empty(9, 2, dim), lse.new_empty(9, 2))
        with monkeypatch.context() as patch:
            gpu.install(patch)
            merge_many(gpu, dtype, 2, dim)(o, lse, *out)
        check(out, expected)
        ((_, launch),) = gpu.launches
        grids[num_sms] = launch.grid
    lanes = specs("sm_80", dtype, dim)[1].context.lanes
    assert grids == {1: (1,), 64: (-(-18 * lanes // 32),)}  # a CTA for each warp's worth of rows


@pytest.mark.parametrize("which", [0, 1], ids=["into the first", "into the second"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dim", [96, 512], ids=["rows share a warp", "a row fills a warp"])
def test_output_may_be_a_state(
    monkeypatch: pytest.MonkeyPatch, which: int, seed: int, dim: int
) -> None:
    gpu = EmulatedGpu(seed=seed)
    gpu.install(monkeypatch)
    given = two(31, 3, "bfloat16", dim)
    expected = reference.merge_state(*given)
    out = given[2 * which], given[2 * which + 1]
    merge_two(gpu, "bfloat16", 3, dim)(*given, *out)
    check(out, expected)


def test_a_masked_token_is_not_touched(emulated_gpu: EmulatedGpu) -> None:
    """Bit for bit, NaN included, in both states."""
    o, lse, o_b, lse_b = two(40, 3, "float16", 64)
    mask = torch.arange(40) % 3 == 1
    before = [x.clone() for x in (o, lse, o_b, lse_b)]
    expected = reference.merge_state(o, lse, o_b, lse_b)
    merge_two(emulated_gpu, "float16", 3, 64)(o, lse, o_b, lse_b, o, lse, mask)
    check((o[mask], lse[mask]), (expected[0][mask], expected[1][mask]))
    for new, old in zip((o, lse), before, strict=False):
        assert torch.equal(new[~mask].view(torch.uint8), old[~mask].view(torch.uint8))
    for new, old in zip((o_b, lse_b), before[2:], strict=True):
        assert torch.equal(new.view(torch.uint8), old.view(torch.uint8))


def wide(x: Tensor) -> Tensor:
    """With gaps of an odd number of elements between rows: no row but the first is aligned."""
    return torch.nn.functional.pad(x, (0, 3), value=math.nan)[..., : x.shape[-1]]


def shifted(x: Tensor) -> Tensor:
    """Contiguous, one element behind an aligned address."""
    whole = x.new_empty(x.numel() + 1)
    whole[1:] = x.flatten()
    return whole[1:].view(x.shape)


def heads_first(x: Tensor) -> Tensor:
    """The last dimension but one is the outermost in memory."""
    return x.movedim(-2, 0).contiguous().movedim(0, -2)


def same(x: Tensor) -> Tensor:
    """One for all tokens: a stride of 0."""
    return x[3:4].expand(x.shape)


@pytest.mark.parametrize(("dtype", "dim"), ROWS[1:4])
@pytest.mark.parametrize("lay", [wide, shifted, heads_first, same])
def test_strides(
    emulated_gpu: EmulatedGpu, lay: Callable[[Tensor], Tensor], dtype: str, dim: int
) -> None:
    o, lse = states(11, 6, 3, dtype, dim)
    o, lse = lay(o), lay(lse) if lay is same else wide(lse)
    to = wide if lay is same else lay
    expected = reference.merge_states(o, lse)
    out = nowhere(*map(torch.clone, expected))
    out = to(out[0]), wide(out[1])
    merge_many(emulated_gpu, dtype, 3, dim)(o, lse, *out)
    check(out, expected)
    given = o[:, 0], lse[:, 0], o[:, 1], lse[:, 1]
    merge_two(emulated_gpu, dtype, 3, dim)(*given, *out)
    check(out, reference.merge_state(*given))


def test_no_tokens_launch_nothing(emulated_gpu: EmulatedGpu) -> None:
    merge_two(emulated_gpu, "float32", 2, 8)(*two(0, 2, "float32", 8), *two(0, 2, "float32", 8)[:2])
    o, lse = states(0, 3, 2, "float32", 8)
    merge_many(emulated_gpu, "float32", 2, 8)(o, lse, o[:, 0], lse[:, 0])
    assert emulated_gpu.launches == []


@pytest.fixture
def far_apart() -> Callable[..., Tensor]:
    """Copies a tensor to where its two parts along a dimension lie 2^31 elements apart.

    The memory is asked for, but only its ends are touched.
    """
    stride = (1 << 31) + 64

    def place(x: Tensor, dim: int = 0) -> Tensor:
        try:
            memory = torch.empty(stride + x.numel(), dtype=x.dtype)
        except RuntimeError as error:
            pytest.skip(f"this machine promises no {stride} elements: {error}")
        strides = [s if i != dim else stride for i, s in enumerate(x.stride())]
        return memory.as_strided(x.shape, strides).copy_(x)

    return place


@pytest.mark.parametrize("dim", [0, 1], ids=["tokens", "heads"])
def test_two_states_of_far_rows(
    emulated_gpu: EmulatedGpu, far_apart: Callable[..., Tensor], dim: int
) -> None:
    o_a, lse_a, o_b, lse_b = two(2, 2, "bfloat16", 64)
    lse_a[0], lse_b[0] = 1.0, 2.0
    expected = reference.merge_state(o_a.nan_to_num(), lse_a, o_b.nan_to_num(), lse_b)
    o_a, o_b = far_apart(o_a.nan_to_num(), dim), far_apart(o_b.nan_to_num(), dim)
    lse_b = far_apart(lse_b)
    merge_two(emulated_gpu, "bfloat16", 2, 64)(o_a, lse_a, o_b, lse_b, o_a, lse_b)
    check((o_a, lse_b), expected)


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["tokens", "states", "heads"])
def test_many_states_of_far_rows(
    emulated_gpu: EmulatedGpu, far_apart: Callable[..., Tensor], dim: int
) -> None:
    o, lse = states(2, 2, 2, "bfloat16", 64)
    o, lse = o.nan_to_num(), lse.nan_to_num(neginf=1.0)
    expected = reference.merge_states(o, lse)
    out = nowhere(*expected)
    merge_many(emulated_gpu, "bfloat16", 2, 64)(
        far_apart(o, dim), far_apart(lse, min(dim, 1)), *out
    )
    check(out, expected)


def test_specs() -> None:
    made = specs("sm_90a", "bfloat16", 128)
    assert [spec.entry for spec in made] == ["attnhub_merge_two", "attnhub_merge_many"]
    assert {spec.arch for spec in made} == {"sm_90a"}
    assert "attnhub::RowShape<attnhub::Bf16, 128, 8, 2>" in made[0].source()
