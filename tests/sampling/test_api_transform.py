"""Softmax, renormalisation, masks and top-k as the public functions give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnhub import sampling
from attnhub.errors import InvalidArgument
from attnhub.sampling import reference
from attnhub.testing.compare import assert_close

BATCH, VOCAB = 5, 111
LOGITS = torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
PROBS = LOGITS.softmax(-1)
K = torch.tensor([1, 2, 50, VOCAB, 9999], dtype=torch.int32)
P = torch.tensor([1e-6, 0.3, 0.9, 0.99, 1.0])
HEAT = torch.tensor([0.0, 0.5, 1.0, 2.0, 9.0])

CALLS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "softmax": (lambda x, **out: sampling.softmax(x, temperature=0.5, **out), LOGITS),
    "top_k_renorm": (lambda x, **out: sampling.top_k_renorm(x, 7, **out), PROBS),
    "top_p_renorm": (lambda x, **out: sampling.top_p_renorm(x, 0.8, **out), PROBS),
    "top_k_mask_logits": (lambda x, **out: sampling.top_k_mask_logits(x, 7, **out), LOGITS),
}
BY_CALL = pytest.mark.parametrize(("call", "x"), CALLS.values(), ids=CALLS.keys())


@pytest.mark.parametrize("heat", [1.0, 0.3, 0, HEAT], ids=["1", "0.3", "0", "per-row"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_softmax(heat: Any, dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    probs = sampling.softmax(logits, temperature=heat)
    assert probs.dtype == torch.float32
    assert_close(probs, reference.softmax(logits, heat))
    assert_close(probs.sum(-1), torch.ones(BATCH))


@pytest.mark.parametrize("k", [1, 7, VOCAB, VOCAB + 1, 2**31, 2**70, 10**400, K], ids=str)
def test_top_k(k: Any) -> None:
    kept = reference.top_k_keep(PROBS, min(k, VOCAB) if isinstance(k, int) else k)
    probs = PROBS.double().where(kept, 0.0)
    assert_close(sampling.top_k_renorm(PROBS, k), probs / probs.sum(-1, keepdim=True))
    assert torch.equal(sampling.top_k_mask_logits(LOGITS, k), LOGITS.where(kept, -math.inf))


@pytest.mark.parametrize("p", [1e-6, 0.5, 1, P], ids=str)
def test_top_p(p: Any) -> None:
    probs = PROBS.double().where(reference.top_p_keep(PROBS, p), 0.0)
    assert_close(sampling.top_p_renorm(PROBS, p), probs / probs.sum(-1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("k", [1, 5, VOCAB])
def test_top_k_values_and_indices(dtype: torch.dtype, k: int) -> None:
    scores = LOGITS.to(dtype)  # rounding to 16 bits makes ties
    values, indices = sampling.top_k(scores, k)
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    assert indices.dtype == torch.int32
    assert torch.equal(indices.long(), order)
    assert torch.equal(values, scores.gather(-1, order))


def test_mask_of_minus_inf_and_ties() -> None:
    logits = torch.tensor([[2.0, -math.inf, 1.0, 1.0], [-math.inf] * 4, [math.nan, 1.0, 2.0, 3.0]])
    masked = sampling.top_k_mask_logits(logits, 2)
    assert masked[0].tolist() == [2.0, -math.inf, 1.0, 1.0]
    assert masked[1].tolist() == [-math.inf] * 4
    assert bool(masked[2].isnan().all())


def test_bad_rows_are_nan_and_spare_their_neighbours() -> None:
    probs = torch.tensor([[0.25, 0.75], [0.0, 0.0], [0.5, -0.5]])
    for result in (sampling.top_k_renorm(probs, 2), sampling.top_p_renorm(probs, 1.0)):
        assert result[0].tolist() == [0.25, 0.75]
        assert bool(result[1:].isnan().all())


@BY_CALL
def test_out_in_place_and_strides(call: Callable[..., Any], x: torch.Tensor) -> None:
    before = x.clone()
    expected = call(x)
    assert torch.equal(x, before), "without out the input is not written"
    wide = torch.full((BATCH, VOCAB + 4), math.nan)
    rows = wide[:, 1 : VOCAB + 1].copy_(x)
    assert call(rows, out=rows) is rows
    assert torch.equal(rows, expected)
    assert bool(wide[:, VOCAB + 1 :].isnan().all())


@BY_CALL
@pytest.mark.parametrize(
    ("out", "message"),
    [
        pytest.param(
            torch.empty(BATCH, 3), r"out has shape \[5, 3\], needs \[5, 111\]", id="shape"
        ),
        pytest.param(torch.empty(BATCH, VOCAB).double(), "out has dtype float64", id="dtype"),
        pytest.param(torch.empty(BATCH, VOCAB, device="meta"), "out is on meta", id="device"),
        pytest.param(torch.empty(VOCAB, BATCH).T, "out has stride 5", id="stride"),
        pytest.param(torch.empty(BATCH, VOCAB).requires_grad_(), "forward only", id="grad"),
        pytest.param([1.0], "out must be a torch.Tensor, got list", id="no-tensor"),
    ],
)
def test_bad_out(
    call: Callable[..., Any], x: torch.Tensor, out: torch.Tensor, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call(x, out=out)


@BY_CALL
def test_bad_input(call: Callable[..., Any], x: torch.Tensor) -> None:
    for bad, message in ((x[0], r"needs \[batch, vocab\]"), (x.int(), "dtype int32, needs float")):
        with pytest.raises(InvalidArgument, match=message):
            call(bad)
    assert call(x[:0]).shape == (0, VOCAB)


@pytest.mark.parametrize("k", [0, VOCAB + 1, 2.0, True, None], ids=str)
def test_bad_k(k: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"k is {k}, needs an int from 1 to 111"):
        sampling.top_k(LOGITS, k)


def test_a_filter_needs_its_parameter() -> None:
    with pytest.raises(InvalidArgument, match=r"top_p is None, needs a number in \(0, 1\]"):
        sampling.top_p_renorm(PROBS, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="top_k has dtype int64, needs int32"):
        sampling.top_k_mask_logits(LOGITS, K.long())
    with pytest.raises(InvalidArgument, match="top_k is True"):
        sampling.top_k_renorm(PROBS, True)
