"""The public draws: what is drawn, from which random numbers, and what is refused."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnhub import sampling
from attnhub.errors import InvalidArgument
from attnhub.sampling import SamplingParams, reference

BATCH, VOCAB = 6, 111
PROBS = torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)
LOGITS = torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(1)).mul(3)
SEED = torch.arange(BATCH) + 2**40
OFFSET = torch.arange(BATCH) * 7
RNG = {"seed": SEED, "offset": OFFSET}
INDICES = torch.tensor([5, 0, 0, 3, 5, 1, 2], dtype=torch.int32)
K = torch.tensor([1, 2, 5, 50, VOCAB, 1000], dtype=torch.int32)
P = torch.tensor([1e-6, 0.1, 0.5, 0.9, 0.99, 1.0])
HEAT = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 9.0])

Call = Callable[..., torch.Tensor]


def from_probs(probs: torch.Tensor = PROBS, **filters: Any) -> list[int]:
    return reference.sample_from_probs(reference.filter_probs(probs, **filters), **RNG).tolist()


def from_logits(temperature: Any = 1.0, **filters: Any) -> list[int]:
    return from_probs(reference.softmax(LOGITS, temperature), **filters)


@pytest.mark.parametrize("k", [pytest.param(3, id="number"), pytest.param(K, id="per-request")])
@pytest.mark.parametrize("p", [pytest.param(0.7, id="number"), pytest.param(P, id="per-request")])
@pytest.mark.parametrize("order", ["top_k_first", "joint"])
def test_filters_draw_what_the_reference_draws(k: Any, p: Any, order: Any) -> None:
    joint = order == "joint"
    got = {
        "top_k": sampling.top_k_sample(PROBS, k, **RNG),
        "top_p": sampling.top_p_sample(PROBS, p, **RNG),
        "min_p": sampling.min_p_sample(PROBS, p, **RNG),
        "both": sampling.top_k_top_p_sample_from_probs(PROBS, k, p, order=order, **RNG),
        "logits": sampling.top_k_top_p_sample_from_logits(
            LOGITS, k, p, temperature=HEAT, order=order, **RNG
        ),
    }
    assert {tokens.dtype for tokens in got.values()} == {torch.int32}
    assert {name: tokens.tolist() for name, tokens in got.items()} == {
        "top_k": from_probs(top_k=k),
        "top_p": from_probs(top_p=p),
        "min_p": from_probs(min_p=p),
        "both": from_probs(top_k=k, top_p=p, joint=joint),
        "logits": from_logits(HEAT, top_k=k, top_p=p, joint=joint),
    }


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"temperature": 0.0}, id="greedy"),
        pytest.param({"temperature": 2, "min_p": 0.1}, id="int-temperature"),
        pytest.param(
            {"temperature": HEAT, "top_k": K, "top_p": P, "min_p": P.flip(0)}, id="all-per-request"
        ),
        pytest.param({"temperature": 0.7, "top_k": 9, "top_p": P}, id="mixed"),
    ],
)
def test_sample_takes_every_setting(settings: dict[str, Any]) -> None:
    got = sampling.sample(LOGITS, SamplingParams(**settings), **RNG)
    assert got.tolist() == from_logits(**settings)
    if settings.keys() <= {"temperature"}:
        assert sampling.sample_from_logits(LOGITS, **settings, **RNG).tolist() == got.tolist()


def test_numbers_that_change_nothing_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sampling.draw, "_sample_logits", lambda *args: seen.append(args))
    neutral = SamplingParams(temperature=1, top_k=VOCAB, top_p=1.0, min_p=0.0, order="joint")
    sampling.sample(LOGITS, neutral, **RNG)
    sampling.sample(LOGITS, SamplingParams(top_k=VOCAB - 1, order="joint"), **RNG)
    sampling.sample(LOGITS, SamplingParams(top_k=3, top_p=0.5, order="joint"), **RNG)
    assert [args[4:9] for args in seen] == [
        (None, None, None, None, False),
        (None, VOCAB - 1, None, None, False),
        (None, 3, 0.5, None, True),
    ]


@pytest.mark.parametrize("huge", [2**31, 2**70, 10**400], ids=["int64", "2**70", "10**400"])
def test_a_top_k_of_any_size_keeps_all(huge: int) -> None:
    assert sampling.top_k_sample(PROBS, huge, **RNG).tolist() == from_probs()


def test_the_largest_temperature_is_flat() -> None:
    heat = torch.finfo(torch.float32).max
    assert sampling.sample_from_logits(LOGITS, temperature=heat, **RNG).tolist() == from_logits(
        heat
    )


def test_ties_at_the_boundary_are_all_drawn() -> None:
    row = torch.tensor([[0.4, 0.3, 0.3, 0.0]]).expand(4000, -1)
    tokens = sampling.top_k_sample(row, 2, generator=torch.Generator().manual_seed(3))
    shares = torch.bincount(tokens.long(), minlength=4) / 4000
    assert (shares - row[0]).abs().max() < 0.04, "5 sigma of 4000 draws"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dtypes_of_logits(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    tokens = sampling.sample_from_logits(logits, temperature=0, **RNG)
    assert torch.equal(tokens.long(), logits.argmax(-1))


def test_strided_rows_and_indices() -> None:
    wide = torch.full((2 * BATCH, VOCAB + 9), math.nan)
    rows = wide[::2, 3 : VOCAB + 3].copy_(PROBS)
    assert sampling.sample_from_probs(rows, **RNG).tolist() == from_probs()
    rng = {"seed": torch.arange(7), "offset": torch.arange(7)}
    got = sampling.top_p_sample(rows, 0.9, indices=INDICES, **rng)
    assert torch.equal(got, sampling.top_p_sample(PROBS[INDICES], 0.9, **rng))
    got = sampling.sample_from_logits(LOGITS, indices=INDICES, **rng)
    assert torch.equal(got, sampling.sample_from_logits(LOGITS[INDICES], **rng))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param([0.5, math.nan], id="nan"),
        pytest.param([0.5, math.inf], id="inf"),
        pytest.param([1.5, -0.5], id="negative"),
        pytest.param([0.0, 0.0], id="all-zero"),
    ],
)
def test_a_row_without_a_distribution_harms_no_neighbour(bad: list[float]) -> None:
    probs = torch.tensor([[0.2, 0.8], bad, [0.7, 0.3]])
    rng = {"seed": torch.arange(3), "offset": torch.zeros(3, dtype=torch.int64)}
    for call in (
        sampling.sample_from_probs,
        lambda x, **rng: sampling.top_k_sample(x, 1, **rng),
        lambda x, **rng: sampling.top_p_sample(x, 0.9, **rng),
        lambda x, **rng: sampling.min_p_sample(x, 0.1, **rng),
    ):
        good = call(probs[[0, 0, 2]], **rng).tolist()
        assert call(probs, **rng).tolist() == [good[0], -1, good[2]]
    logits = torch.tensor([[1.0, 2.0], [math.nan, 0.0], [-math.inf, -math.inf], [0.0, math.inf]])
    assert (sampling.sample_from_logits(logits) < 0).tolist() == [False, True, True, True]


def test_empty_batch_and_single_token() -> None:
    assert sampling.sample_from_probs(torch.empty(0, 5)).shape == (0,)
    assert sampling.sample_from_logits(torch.empty(0, 5), temperature=torch.empty(0)).shape == (0,)
    assert sampling.top_p_sample(torch.ones(2, 1), 0.5).tolist() == [0, 0]


# -- random numbers --------------------------------------------------------------------------------


def test_equal_seed_and_offset_reproduce_whatever_the_batch() -> None:
    call: Call = lambda rows, **rng: sampling.top_k_top_p_sample_from_probs(  # noqa: E731
        rows, 40, 0.9, **rng
    )
    together = call(PROBS, **RNG)
    assert torch.equal(call(PROBS, **RNG), together)
    alone = [
        call(PROBS[b : b + 1], seed=SEED[b : b + 1], offset=OFFSET[b : b + 1]).item()
        for b in range(BATCH)
    ]
    assert together.tolist() == alone
    order = torch.tensor([3, 1, 5, 0])
    moved = call(PROBS[order], seed=SEED[order], offset=OFFSET[order])
    assert torch.equal(moved, together[order])


def test_seeds_and_offsets_both_change_the_draw() -> None:
    flat = torch.full((1, 2**20), 1.0)
    one, two = torch.tensor([1]), torch.tensor([2])
    tokens = [
        sampling.sample_from_probs(flat, seed=seed, offset=offset).item()
        for seed in (one, two)
        for offset in (one, two)
    ]
    assert len(set(tokens)) == 4


@pytest.mark.parametrize("own", [True, False], ids=["own-generator", "default-generator"])
def test_a_generator_reproduces_and_advances(own: bool) -> None:
    flat = torch.full((4, 2**20), 1.0)
    generator = torch.Generator() if own else torch.default_generator
    with torch.random.fork_rng(devices=[]):
        runs = []
        for _ in range(2):
            generator.manual_seed(5)
            chosen = generator if own else None
            first = sampling.sample_from_probs(flat, generator=chosen)
            second = sampling.sample_from_probs(flat, generator=chosen)
            runs.append([*first.tolist(), *second.tolist()])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 8, "requests of one call and of two calls differ"


def test_draws_of_a_generator_follow_the_row() -> None:
    row = torch.tensor([0.1, 0.2, 0.3, 0.4])
    probs = row.expand(20_000, -1)
    tokens = sampling.sample_from_probs(probs, generator=torch.Generator().manual_seed(9)).long()
    counts = torch.bincount(tokens, minlength=4).double()
    expected = row.double() * len(tokens)
    chi_square = ((counts - expected).square() / expected).sum()
    assert chi_square < 16.3, "p = 0.001 at three degrees of freedom"


def test_default_device_and_dtype_do_not_matter() -> None:
    """In a process of its own, since torch keeps traces of a default device."""
    code = """
import torch
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
from attnhub import sampling as s
cpu = {"device": "cpu", "dtype": torch.float32}
probs = torch.tensor([[0.0, 1.0, 0.0]], **cpu)
assert s.sample_from_probs(probs).tolist() == [1]
params = s.SamplingParams(temperature=0.5, top_k=2, top_p=0.9, min_p=0.1)
assert s.sample(probs, params).tolist()[0] in (0, 1, 2)
assert s.softmax(probs, temperature=0).tolist() == probs.tolist()
assert s.top_k_renorm(probs, 1).tolist() == s.top_p_renorm(probs, 0.5).tolist() == probs.tolist()
assert s.top_k(probs, 1)[1].tolist() == [[1]]
target = probs.expand(1, 2, 3)
ids = torch.tensor([[1]], device="cpu", dtype=torch.int32)
assert s.chain_speculative_sampling(target[:, :1], ids, target)[0].tolist() == [[1, 1]]
assert s.tree_speculative_sampling(ids, -ids, target)[0].tolist() == [[0]]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- what is refused -------------------------------------------------------------------------------


def refused(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param(PROBS[0], r"shape \[111\], needs \[batch, vocab\]", id="one-row"),
        pytest.param(PROBS[:, :0], "vocab >= 1", id="no-vocab"),
        pytest.param(PROBS.double(), "has dtype float64, needs float", id="float64"),
        pytest.param(PROBS.T, r"stride 111 in its last.*\.contiguous\(\)", id="stride"),
        pytest.param(PROBS.clone().requires_grad_(), "forward only", id="needs-grad"),
    ],
)
def test_bad_rows(rows: torch.Tensor, message: str) -> None:
    refused(f"^probs .*{message}|{message}", lambda: sampling.sample_from_probs(rows))
    refused(f"^logits .*{message}|{message}", lambda: sampling.sample_from_logits(rows))


@pytest.mark.parametrize("rows", [None, [[0.5, 0.5]], 3.0], ids=["none", "list", "number"])
def test_rows_that_are_no_tensor(rows: Any) -> None:
    name = type(rows).__name__
    refused(f"probs must be a torch.Tensor, got {name}", lambda: sampling.sample_from_probs(rows))
    refused(f"logits must be a torch.Tensor, got {name}", lambda: sampling.sample_from_logits(rows))


def test_params_and_random_state_of_another_kind() -> None:
    refused("params is a dict", lambda: sampling.sample(LOGITS, {"top_k": 3}))  # type: ignore[arg-type]
    refused(
        "generator is a int, needs a torch.Generator",
        lambda: sampling.sample_from_probs(PROBS, generator=3),  # type: ignore[arg-type]
    )
    refused(
        "seed must be a torch.Tensor, got int",
        lambda: sampling.sample_from_probs(PROBS, seed=1, offset=2),  # type: ignore[arg-type]
    )
    refused(
        "indices must be a torch.Tensor, got list",
        lambda: sampling.sample_from_probs(PROBS, indices=[0]),  # type: ignore[arg-type]
    )


def test_probs_are_float32() -> None:
    refused(
        "probs has dtype float16, needs float32", lambda: sampling.sample_from_probs(PROBS.half())
    )


NUMBERS = r"needs a Python number .* or a 1-D {} tensor \[6\]"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        pytest.param("top_p", 0.0, "top_p is 0.0, " + NUMBERS.format("float32"), id="top_p-0"),
        pytest.param("top_p", 1.01, r"top_p is 1.01, .*in \(0, 1\]", id="top_p-over-1"),
        pytest.param("top_p", math.nan, "top_p is nan", id="top_p-nan"),
        pytest.param("top_p", "0.9", "top_p is '0.9'", id="top_p-text"),
        pytest.param("min_p", -0.1, r"min_p is -0.1, .*in \[0, 1\]", id="min_p-negative"),
        pytest.param("temperature", -1, "temperature is -1, .*>= 0", id="temperature-negative"),
        pytest.param("temperature", math.inf, "temperature is inf", id="temperature-inf"),
        pytest.param("temperature", 1e39, r"is 1e\+39, .*finite in float32", id="over-float32"),
        pytest.param("temperature", 10**400, "is 10+, needs", id="over-float64"),
        pytest.param("temperature", True, "temperature is True", id="temperature-bool"),
        pytest.param("top_k", True, "top_k is True, needs .*an int", id="top_k-bool"),
        pytest.param("top_p", True, "top_p is True", id="top_p-bool"),
        pytest.param("min_p", False, "min_p is False", id="min_p-bool"),
        pytest.param("min_p", P.clone().requires_grad_(), "forward only", id="needs-grad"),
        pytest.param("top_k", 0, "top_k is 0, needs .*>= 1", id="top_k-0"),
        pytest.param("top_k", 5.0, "top_k is 5.0, .*an int", id="top_k-float"),
        pytest.param("top_k", K.long(), "top_k has dtype int64, needs int32; convert", id="int64"),
        pytest.param("top_k", K - 1, r"top_k is 0 at \[0\]", id="top_k-tensor-value"),
        pytest.param("top_p", P - 0.1, r"top_p is -0.\d+ at \[0\]", id="top_p-tensor-value"),
        pytest.param("temperature", P / 0, r"is inf at \[0\]", id="temperature-tensor-value"),
        pytest.param("top_p", P.double(), "top_p has dtype float64, needs float32", id="float64"),
        pytest.param("top_p", P[0], r"shape \[\], " + NUMBERS.format("float32"), id="0-d"),
        pytest.param("top_p", P[:, None], r"a tensor of shape \[6, 1\]", id="2-d"),
        pytest.param("top_k", K[:5], r"shape \[5\], " + NUMBERS.format("int32"), id="short"),
        pytest.param(
            "min_p", P.to("meta"), "min_p is on meta, but the input is on cpu", id="device"
        ),
        pytest.param("min_p", P.repeat(2)[::2], "min_p has stride 2", id="stride"),
    ],
)
def test_bad_parameters(name: str, value: Any, message: str) -> None:
    refused(message, lambda: sampling.sample(LOGITS, SamplingParams(**{name: value}), **RNG))


def test_bad_order() -> None:
    params = SamplingParams(order="top_p_first")  # type: ignore[arg-type]
    refused(
        "order is 'top_p_first', needs 'top_k_first' or", lambda: sampling.sample(LOGITS, params)
    )


@pytest.mark.parametrize(
    ("rng", "message"),
    [
        pytest.param({"seed": SEED}, r"offset is missing.*int64 \[6\]", id="no-offset"),
        pytest.param({"offset": OFFSET}, "seed is missing", id="no-seed"),
        pytest.param({**RNG, "generator": torch.Generator()}, "give one of them", id="both"),
        pytest.param({**RNG, "seed": SEED.int()}, "seed has dtype int32, needs int64", id="int32"),
        pytest.param({**RNG, "offset": OFFSET[:1]}, r"offset has shape \[1\]", id="shape"),
        pytest.param({**RNG, "seed": SEED.to("meta")}, "seed is on meta", id="device"),
        pytest.param({**RNG, "seed": SEED.repeat(2)[::2]}, "seed has stride 2", id="stride"),
    ],
)
def test_bad_random_state(rng: dict[str, Any], message: str) -> None:
    refused(message, lambda: sampling.sample_from_probs(PROBS, **rng))


def test_generator_of_another_device() -> None:
    probs = PROBS.to("meta")
    refused(
        r"generator is on cpu, but the input is on meta; use torch.Generator\('meta'\)",
        lambda: sampling.sample_from_probs(probs, generator=torch.Generator()),
    )


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        pytest.param(INDICES.long(), r"int64, needs int32; use indices.to", id="int64"),
        pytest.param(INDICES + 1, r"indices\[0\] is 6, needs 0 to 5 \(a row of probs\)", id="high"),
        pytest.param(INDICES - 1, r"indices\[1\] is -1", id="negative"),
        pytest.param(INDICES[None], r"shape \[1, 7\]", id="2-d"),
        pytest.param(INDICES.to("meta"), "indices is on meta, but probs is on cpu", id="device"),
    ],
)
def test_bad_indices(indices: torch.Tensor, message: str) -> None:
    refused(message, lambda: sampling.sample_from_probs(PROBS, indices=indices))


def test_public_functions_have_short_signatures() -> None:
    for name in sampling.__all__:
        assert len(inspect.signature(getattr(sampling, name)).parameters) <= 10, name
