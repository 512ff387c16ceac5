"""The hooks of emitted variants: whole mods, look-ups and built-in features give torch's values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.plugin import VariantCode
from attnhub.testing.compare import assert_close
from attnhub.variant import HOOKS, ScalarParam, TensorParam, Variant, trace
from attnhub.variant.torch_emitter import evaluate
from tests.variant.cases import BATCH, CASES, DIM, HEADS, KV_LEN, QO_LEN
from tests.variant.hooks import Grid, Params, grid

SHIFT = KV_LEN - QO_LEN
GENERATOR = torch.Generator().manual_seed(3)


def values(num_cases: int = 1) -> Tensor:
    """Scores or elements, ``[BATCH of each case, HEADS, QO_LEN, KV_LEN]``."""
    return 3 * torch.randn(num_cases * BATCH, HEADS, QO_LEN, KV_LEN, generator=GENERATOR)


def one_of(hook: str) -> tuple[Callable[..., Any], dict[str, Any], int]:
    """A mod that is every case of a hook in turn, as b says; its parameters; how many they are."""
    cases = [case for case in CASES if case.hook == hook]
    place = HOOKS[hook].inputs.index("b")

    def mod(*args: Any) -> Any:
        which, b = args[place] // BATCH, args[place] % BATCH
        inner = (*args[:place], b, *args[place + 1 :])
        result = cases[0].symbolic()(*inner)
        for number, case in enumerate(cases[1:], start=1):
            result = torch.where(which == number, case.symbolic()(*inner), result)
        return result

    # Copies, as in the emulator an address means one tensor.
    params = {name: copy.deepcopy(x) for case in cases for name, x in case.params.items()}
    return mod, params, len(cases)


def expected(variant: Variant, hook: str, x: Tensor, params: Params, shift: int) -> Tensor:
    """What the torch emitter makes of a hook on the same grid, in float64."""
    requests, heads, rows, columns = x.shape
    graph = variant.hook(hook)
    assert graph is not None
    queries = torch.arange(rows)[:, None]
    places = {
        "b": torch.arange(requests)[:, None, None, None],
        "h": torch.arange(heads)[:, None, None],
        "q_idx": queries + shift,
        "kv_idx": torch.arange(columns),
        "d": torch.arange(columns),
        "score": x.double(),
        "x": x.double(),
    }
    if hook == "key_mod":
        places |= {"h_kv": places["h"], "kv_idx": queries}
    return evaluate(graph, {name: places[name] for name in graph.inputs}, params)


def on(device: torch.device, params: Params) -> Params:
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in params.items()
    }


def run(variant: Variant, x: Tensor, params: Params, device: torch.device, shift: int = 0) -> Grid:
    return grid(variant, x.to(device), on(device, params), shift=shift)


@pytest.mark.parametrize("hook", HOOKS)
def test_mods_give_what_torch_gives(hook: str, device: torch.device) -> None:
    mod, params, num_cases = one_of(hook)
    variant = Variant(**{hook: mod})
    x = values(num_cases)
    if hook not in ("score_mod", "mask_mod"):
        x = x[..., :DIM].contiguous()
    found = run(variant, x, params, device, SHIFT)
    results = {
        "score_mod": found.scores,
        "mask_mod": found.kept,
        "query_mod": found.queries,
        "key_mod": found.keys,
        "output_mod": found.outputs,
    }
    for name, actual in results.items():
        if name == hook:
            wanted = expected(variant, hook, x, params, SHIFT)
            assert_close(actual.cpu(), wanted if wanted.is_floating_point() else wanted.clone())
        else:  # what a variant does not change stays as it is
            assert torch.equal(actual.cpu(), torch.ones_like(x).bool() if name == "mask_mod" else x)


def test_built_in_features_come_before_the_score_mod(device: torch.device) -> None:
    gain = ScalarParam("gain")
    variant = Variant(
        soft_cap=2.5,
        alibi=True,
        sinks=True,
        score_mod=lambda score, b, h, q_idx, kv_idx: torch.maximum(score, score * gain),
    )
    params = {
        "alibi_slopes": torch.tensor([0.5, 0.25, -1.0]),
        "sinks": torch.tensor([-1.0, 0.0, torch.inf]),
        "gain": 0.1,
    }
    x = values()
    x[0, 0] = torch.tensor([-torch.inf, -1e4, -1e-3, 0.0, 1e-3, 1e4, torch.inf])
    found = run(variant, x, params, device, SHIFT)
    distance = torch.arange(KV_LEN) - torch.arange(QO_LEN)[:, None] - SHIFT
    capped = 2.5 * torch.tanh(x.double() / 2.5) + params["alibi_slopes"][:, None, None] * distance
    assert_close(found.scores.cpu(), torch.maximum(capped, capped * 0.1))
    assert torch.equal(found.sinks.cpu(), params["sinks"])


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool],
    ids=str,
)
def test_elements_of_every_dtype_in_memory_of_any_shape(
    dtype: torch.dtype, device: torch.device
) -> None:
    name = str(dtype).removeprefix("torch.")
    table = TensorParam("table", 3, name)
    variant = Variant(
        score_mod=lambda score, b, h, q_idx, kv_idx: (
            score + torch.where(table[h, q_idx, kv_idx] != 0, 1.0, 0.0)
            if dtype == torch.bool
            else score + table[h, q_idx, kv_idx]
        )
    )
    whole = torch.randint(-7, 7, (KV_LEN, HEADS, 2 * QO_LEN), generator=GENERATOR)
    whole = whole.to(device, dtype).permute(1, 2, 0)  # [HEADS, 2 * QO_LEN, KV_LEN]
    x = values()
    for view in (
        whole[:, 1::2],  # no dimension is contiguous, and none begins at 0
        whole[:, :QO_LEN, :1].expand(-1, -1, KV_LEN),  # one does not move at all
    ):
        found = run(variant, x, {"table": view}, device)
        assert_close(found.scores.cpu(), x.double() + view.cpu().double())


def test_an_index_out_of_range_is_taken_to_the_nearest(device: torch.device) -> None:
    """Hidden pairs may have one; a kernel that reads what it names would touch foreign memory."""
    table, empty = TensorParam("table", 1), TensorParam("empty", 2)
    variant = Variant(
        score_mod=lambda score, b, h, q_idx, kv_idx: table[(kv_idx - 3) * 2**29],
        mask_mod=lambda b, h, q_idx, kv_idx: empty[q_idx, kv_idx] == empty[h, b],
    )
    params = {"table": torch.tensor([1.0, 2.0, 3.0, 4.0]), "empty": torch.zeros(3, 0)}
    found = run(variant, values(), params, device)
    assert torch.equal(found.scores[0, 0, 0].cpu(), torch.tensor([1.0, 1, 1, 1, 4, 4, 4]))


def test_offsets_past_two_to_the_31(device: torch.device) -> None:
    memory = torch.empty(2**31 + 64, dtype=torch.bool, device=device)
    far = memory.as_strided((2, 4), (2**31, 1))
    far.copy_(torch.tensor([[True, False, True, True], [False, True, True, False]]))
    table = TensorParam("table", 2, "bool")
    variant = Variant(mask_mod=lambda b, h, q_idx, kv_idx: table[b, kv_idx])
    kept = grid(variant, torch.zeros(2, 1, 1, 4, device=device), {"table": far}).kept
    assert torch.equal(kept[:, 0, 0], far)


def test_a_dimension_longer_than_any_index() -> None:
    table = TensorParam("table", 1)
    code = VariantCode.of(Variant(mask_mod=lambda b, h, q_idx, kv_idx: table[kv_idx] > 0))
    values = code.values({"table": torch.zeros(1).expand(2**31 + 5)})
    assert values[1:] == (0, 2**31 - 1)
    assert len(code.params.pack(values)) == 24


@pytest.mark.parametrize("on_device", [False, True], ids=["numbers", "tensors"])
def test_scalars(on_device: bool, device: torch.device) -> None:
    gain, count = ScalarParam("double"), ScalarParam("template", "int32")  # words of C++
    variant = Variant(score_mod=lambda score, b, h, q_idx, kv_idx: score * gain + kv_idx % count)
    numbers: Params = {"double": 0.5, "template": 3}
    tensors = {"double": torch.tensor(0.5), "template": torch.tensor(3, dtype=torch.int32)}
    x = values()
    found = run(variant, x, tensors if on_device else numbers, device)
    assert_close(found.scores.cpu(), x.double() * 0.5 + torch.arange(KV_LEN) % 3)


def test_a_division_that_is_not_chosen(device: torch.device) -> None:
    """By 0, which is undefined in C++: a compiler may take it as a proof that no divisor is 0."""

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        quotient = torch.where(kv_idx == 0, 100, 12 // kv_idx)
        return quotient + torch.where(kv_idx == 0, 1000, 12 % kv_idx)

    x = values()
    found = run(Variant(score_mod=mod), x, {}, device).scores[0, 0, 0].tolist()
    assert found == [1100.0, *(12 // k + 12 % k for k in range(1, KV_LEN))]


def test_constants(device: torch.device) -> None:
    numbers = [0.1, -1.5, torch.inf, -torch.inf, torch.nan, 1e300, -1e300, 1e-45, 2.0**24 + 1, -0.0]

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = score
        for place, number in enumerate(numbers):
            result = torch.where(b == place, number, result)
        return result

    x = torch.zeros(len(numbers), 1, 1, 1)
    found = run(Variant(score_mod=mod), x, {}, device).scores.flatten().cpu()
    rounded = torch.tensor(numbers, dtype=torch.float64).float()
    torch.testing.assert_close(found, rounded, rtol=0, atol=0, equal_nan=True)


def test_a_constant_mask(device: torch.device) -> None:
    variant = Variant(mask_mod=lambda b, h, q_idx, kv_idx: False)
    assert not run(variant, values(), {}, device).kept.any()
    assert str(trace("mask_mod", variant.hook("mask_mod"))) == "False"
