"""Variants in Triton: every operation, whole mods, look-ups and built-ins give torch's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.plugin import TritonVariant
from attnhub.testing.compare import assert_close
from attnhub.testing.triton_interpreter import missing, repaired
from attnhub.variant import Functor, ScalarParam, TensorParam, Variant
from attnhub.variant.torch_emitter import evaluate
from attnhub.variant.triton_emitter import emit
from tests.variant.cases import DIM, HEADS
from tests.variant.test_emitted_hooks import SHIFT, expected, one_of, values
from tests.variant.test_emitted_operations import ERRORS, OPERATIONS, POOLS, all_of, check

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
Params = Mapping[str, Tensor | float]


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    if DEVICE.type == "cuda":
        yield
        return
    if why := missing():
        pytest.skip(why)
    with repaired():
        yield


def grid(variant: Variant, hook: str, x: Tensor, params: Params, *, shift: int = 0) -> Tensor:
    """A hook at every position, on x ``[requests, heads, rows, columns]``."""
    from tests.variant import triton_grid

    params = {
        name: value.to(DEVICE) if isinstance(value, Tensor) else value
        for name, value in params.items()
    }
    code = TritonVariant.of(variant, params)
    x = x.to(DEVICE)
    out = torch.full_like(x, torch.nan)
    triton_grid.launch(hook, code.functions[hook], x, out, code.values(params), shift)
    return out.cpu()


def test_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERRORS, "pow", (2**-16, 1e-37))  # see triton_functions.power
    monkeypatch.setitem(ERRORS, "exp", (2**-17, 1e-37))  # see triton_emitter
    graphs = [operation.graph() for operation in OPERATIONS]
    side = max(map(len, POOLS.values()))
    x = torch.zeros(1, len(graphs), side, side)
    actual = grid(Variant(score_mod=all_of(graphs)), "score_mod", x, POOLS)[0]
    places = torch.arange(side)
    inputs = {"q_idx": places[:, None], "kv_idx": places}
    for number, (operation, graph) in enumerate(zip(OPERATIONS, graphs, strict=True)):
        score = torch.zeros(side, side, dtype=torch.float64)
        check(operation.op, actual[number], evaluate(graph, {"score": score, **inputs}, POOLS))


def test_a_minimum_and_a_maximum_of_nan_are_nan() -> None:
    low, high = ScalarParam("low"), ScalarParam("high")
    variant = Variant(
        score_mod=lambda score, b, h, q_idx, kv_idx: torch.maximum(torch.minimum(score, high), low)
    )
    for call in ("tl.minimum(score, t0, ", "tl.maximum(t1, t2, "):
        assert f"{call}propagate_nan=tl.PropagateNan.ALL)" in emit(variant)
    x = values()
    x[..., ::2] = torch.nan
    for bounds in ((-0.5, 0.5), (torch.nan, 0.5), (-0.5, torch.nan)):
        actual = grid(variant, "score_mod", x, dict(zip(("low", "high"), bounds, strict=True)))
        wanted = torch.full_like(x, torch.nan) if bounds != (-0.5, 0.5) else x.clamp(-0.5, 0.5)
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("hook", ["score_mod", "mask_mod", "query_mod", "key_mod", "output_mod"])
def test_whole_mods(hook: str) -> None:
    mod, params, count = one_of(hook)
    variant = Variant(**{hook: mod})
    x = values(count)
    if hook not in ("score_mod", "mask_mod"):
        x = x[..., :DIM].contiguous()
    actual = grid(variant, hook, x, params, shift=SHIFT)
    wanted = expected(variant, hook, x, params, SHIFT).expand_as(x)
    assert_close(actual, wanted.float(), name=hook)


def test_scalars_are_numbers_or_tensors() -> None:
    gain, count = ScalarParam("gain"), ScalarParam("count", "int32")
    variant = Variant(output_mod=lambda x, b, h, q_idx, d: x * gain + count)
    x = values()
    for params in (
        {"gain": 0.5, "count": 1},
        {"gain": torch.tensor(0.5), "count": torch.tensor(7, dtype=torch.int32)},
        {"gain": 0.5, "count": torch.tensor(-2, dtype=torch.int32)},
    ):
        actual = grid(variant, "output_mod", x, params)
        assert torch.equal(actual, x * 0.5 + int(params["count"]))


def test_indices_are_moved_into_the_tensor() -> None:
    table = TensorParam("table", 2)
    held = torch.arange(6.0).view(3, 2).t()  # strides other than those of its shape
    variant = Variant(score_mod=lambda score, b, h, q_idx, kv_idx: table[q_idx - 9, kv_idx])
    actual = grid(variant, "score_mod", values()[:1], {"table": held})
    columns = torch.arange(actual.shape[3]).clamp(max=2)
    assert torch.equal(actual, held[0, columns].expand_as(actual))
    empty = grid(variant, "score_mod", values()[:1], {"table": torch.empty(0, 2)})
    assert torch.equal(empty, torch.zeros_like(empty))


def test_built_in_features_are_a_part_of_the_score_hook() -> None:
    variant = Variant(
        soft_cap=1.5, alibi=True, score_mod=lambda score, b, h, q_idx, kv_idx: 2.0 * score
    )
    slopes = torch.tensor([0.5, 0.25, 0.125])[:HEADS]
    x = values()
    places = torch.arange(x.shape[3]) - torch.arange(x.shape[2])[:, None]
    capped = 1.5 * torch.tanh(x / 1.5) + slopes[:, None, None] * places
    assert_close(grid(variant, "score_mod", x, {"alibi_slopes": slopes}), 2.0 * capped)


def test_only_what_is_needed_is_written() -> None:
    code = TritonVariant.of(Variant(causal=True, window=(3, 0)), {})
    assert not any(code.functions.values())
    assert code.values({}) == ()


def test_the_text_does_not_depend_on_the_process() -> None:
    mods = [lambda score, b, h, q_idx, kv_idx: score * 2.0 for _ in range(2)]
    assert emit(Variant(score_mod=mods[0])) == emit(Variant(score_mod=mods[1]))


def test_a_functor_is_refused() -> None:
    functor: Any = Functor(source="struct Mine {};", struct="Mine", hooks=(), params=())
    with pytest.raises(InvalidArgument, match=r"functor is C\+\+.*mods"):
        emit(Variant(functor=functor))
