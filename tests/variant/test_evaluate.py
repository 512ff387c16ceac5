"""A traced mod gives the values that the same function gives when called with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnhub.errors import IndexOutOfRange, InvalidArgument
from attnhub.testing.compare import assert_close
from attnhub.variant import Graph, ScalarParam, TensorParam, Variant, trace
from attnhub.variant.expr import OPS
from attnhub.variant.torch_emitter import _CALLS, evaluate
from tests.variant.cases import BATCH, CASES, HEADS, KV_LEN, QO_LEN, Case, inputs

SHAPE = (BATCH, HEADS, QO_LEN, KV_LEN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_equal_those_of_the_function(case: Case, dtype: torch.dtype) -> None:
    arguments = inputs(case.hook, dtype)
    expected = case.concrete()(*arguments.values())
    actual = evaluate(trace(case.hook, case.symbolic()), arguments, case.params)
    expected = expected.expand(actual.shape)
    if case.hook == "mask_mod":
        assert actual.dtype == torch.bool
        assert torch.equal(actual, expected)
        assert actual.any()
        assert not actual.all()
    else:
        assert actual.dtype == dtype
        assert_close(actual, expected.to(dtype), dtype=dtype)


def test_every_operation_is_emitted_and_covered() -> None:
    special = {"const", "input", "scalar", "index", "to_float", "to_int"}
    assert set(_CALLS) | special == set(OPS)
    used = {node.op for case in CASES for node in trace(case.hook, case.symbolic()).nodes}
    assert used == set(OPS)


@pytest.mark.parametrize(
    ("hook", "mod", "value"),
    [
        pytest.param("mask_mod", lambda *_: True, True, id="keep-all"),
        pytest.param("mask_mod", lambda *_: False, False, id="keep-none"),
        pytest.param("score_mod", lambda *_: 0.1, 0.1, id="float"),
        pytest.param("score_mod", lambda *_: 3, 3.0, id="int-promotes"),
        pytest.param("score_mod", lambda *_: -float("inf"), -float("inf"), id="infinite"),
    ],
)
def test_constants_fill_the_shape(hook: str, mod: Callable[..., Any], value: float) -> None:
    actual = evaluate(trace(hook, mod), inputs(hook, torch.float64))
    expected = torch.tensor(value, dtype=torch.bool if hook == "mask_mod" else torch.float64)
    assert torch.equal(actual, expected.expand(SHAPE))


def test_float_constants_keep_double_precision() -> None:
    score = torch.linspace(-3, 3, 50, dtype=torch.float64)
    actual = evaluate(trace("score_mod", lambda s, b, h, q, k: s * 0.1), {"score": score})
    assert torch.equal(actual, score * 0.1)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(lambda q, k: (q - k) // 3, [-2, -1, -1, -1, 0], id="floor-division"),
        pytest.param(lambda q, k: (q - k) % 3, [2, 0, 1, 2, 0], id="sign-of-the-divisor"),
        pytest.param(lambda q, k: (q - k) % -3, [-1, 0, -2, -1, 0], id="negative-divisor"),
        pytest.param(lambda q, k: 7 // (k - q - 5), [-7, -4, -3, -2, -2], id="reflected"),
        pytest.param(lambda q, k: ((q - k) / 2).int(), [-2, -1, -1, 0, 0], id="int-truncates"),
        pytest.param(lambda q, k: (q - k) / 2, [-2.0, -1.5, -1.0, -0.5, 0.0], id="true-division"),
        pytest.param(lambda q, k: ~(k - q), [-5, -4, -3, -2, -1], id="bitwise-not"),
        pytest.param(lambda q, k: 2.0 ** (q - k), [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], id="power"),
        pytest.param(lambda q, k: (q - k) ** 3, [-64, -27, -8, -1, 0], id="whole-power"),
        pytest.param(lambda q, k: (k > q + 2).float() + 1, [2, 2, 1, 1, 1], id="bool-to-float"),
        pytest.param(lambda q, k: (q - k).bool().int() * 5, [5, 5, 5, 5, 0], id="int-to-bool"),
        pytest.param(lambda q, k: torch.sign(q - k + 2), [-1, -1, 0, 1, 1], id="sign"),
        pytest.param(lambda q, k: torch.floor(q - k), [-4, -3, -2, -1, 0], id="floor-of-int"),
        pytest.param(lambda q, k: 1 - +(q - k), [5, 4, 3, 2, 1], id="unary-plus"),
    ],
)
def test_number_rules(expression: Callable[..., Any], expected: list[float]) -> None:
    graph = trace("score_mod", lambda s, b, h, q, k: expression(q, k))
    actual = evaluate(graph, {"q_idx": torch.arange(5), "kv_idx": torch.tensor(4)})
    assert actual.tolist() == [float(value) for value in expected]


def test_int32_indices_and_half_parameters_are_read_exactly() -> None:
    table = TensorParam("table", 1, "bfloat16")
    count = ScalarParam("count", "int32")
    graph = trace("score_mod", lambda s, b, h, q, k: s + table[q % count])
    values = torch.tensor([0.5, 3.0], dtype=torch.bfloat16)
    arguments = {"score": torch.zeros(4), "q_idx": torch.arange(4, dtype=torch.int32)}
    for given in (2, torch.tensor(2, dtype=torch.int32)):
        actual = evaluate(graph, arguments, {"table": values, "count": given, "unused": 1.0})
        assert actual.tolist() == [0.5, 3.0, 0.5, 3.0]


def _bias_graph() -> Graph:
    bias = TensorParam("bias", 2)
    return trace("score_mod", lambda s, b, h, q, k: s + bias[h, q - k])


def _bias_inputs() -> dict[str, torch.Tensor]:
    names = inputs("score_mod")
    return {**names, "q_idx": torch.arange(QO_LEN)[:, None], "kv_idx": torch.arange(QO_LEN)}


def test_an_index_out_of_range_names_the_parameter() -> None:
    arguments = {**_bias_inputs(), "score": torch.zeros(BATCH, HEADS, QO_LEN, QO_LEN)}
    sentence = r'params\["bias"\] .*index 1 from -4 to -1; dimension 1 takes 0 to 4'
    with pytest.raises(IndexError, match=sentence.replace('"', "'")):
        evaluate(_bias_graph(), arguments, {"bias": torch.ones(HEADS, QO_LEN)})
    with pytest.raises(IndexOutOfRange, match="index 0 from 2 to 2; dimension 0 takes 0 to 1"):
        evaluate(_bias_graph(), arguments, {"bias": torch.ones(HEADS - 1, QO_LEN)})


def test_indices_matter_only_where_visible() -> None:
    bias = torch.arange(HEADS * QO_LEN, dtype=torch.float32).reshape(HEADS, QO_LEN)
    arguments = {**_bias_inputs(), "score": torch.zeros(BATCH, HEADS, QO_LEN, QO_LEN)}
    visible = arguments["q_idx"] >= arguments["kv_idx"]
    actual = evaluate(_bias_graph(), arguments, {"bias": bias}, visible=visible)
    for q in range(QO_LEN):
        for k in range(q + 1):
            assert torch.equal(actual[1, :, q, k], bias[:, q - k])


def test_nothing_to_evaluate() -> None:
    arguments = {"score": torch.zeros(2, 0), "h": torch.zeros(2, 1, dtype=torch.int64)}
    arguments |= {"q_idx": torch.tensor(0), "kv_idx": torch.zeros(0, dtype=torch.int64)}
    actual = evaluate(_bias_graph(), arguments, {"bias": torch.zeros(1, 0)})
    assert actual.shape == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "params", "sentence"),
    [
        pytest.param({"score": torch.zeros(1)}, {}, "uses the input 'q_idx'", id="missing-input"),
        pytest.param({"x": torch.zeros(1)}, {}, "input 'x' does not exist; give score", id="name"),
        pytest.param(
            {"score": torch.zeros(1, dtype=torch.bfloat16)}, {}, "convert it to one of", id="half"
        ),
        pytest.param({"q_idx": torch.zeros(1)}, {}, "'q_idx' has dtype torch.float32", id="kind"),
        pytest.param(None, {}, r"uses the parameter \(t: float32 tensor", id="missing-param"),
        pytest.param(None, {"t": torch.zeros(1, 1)}, "ndim=2", id="rank"),
        pytest.param(None, {"t": torch.zeros(1).half()}, "float16", id="dtype"),
        pytest.param(None, {"t": 1.0}, "of type float", id="number-for-tensor"),
        pytest.param(None, {"t": torch.zeros(1), "n": 1.5}, "as a Python int", id="float-for-int"),
        pytest.param(None, {"t": torch.zeros(1), "n": True}, "of type bool", id="bool-for-int"),
    ],
)
def test_wrong_inputs_and_parameters(
    arguments: dict[str, torch.Tensor] | None, params: dict[str, Any], sentence: str
) -> None:
    t, n = TensorParam("t", 1), ScalarParam("n", "int32")
    graph = trace("score_mod", lambda s, b, h, q, k: s + t[q] + n)
    ok = {"score": torch.zeros(1), "q_idx": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(InvalidArgument, match=sentence):
        evaluate(graph, ok if arguments is None else arguments, params)


def test_sigmoid_attention_in_a_few_lines() -> None:
    bias = ScalarParam("bias")

    def sigmoid(score, b, h, q_idx, kv_idx):
        return torch.sigmoid(score + bias)

    variant = Variant(causal=True, softmax=False, score_mod=sigmoid)

    arguments, v = inputs("score_mod"), torch.randn(BATCH, HEADS, KV_LEN, 4)
    graph = variant.hook("score_mod")
    assert graph is not None
    weights = evaluate(graph, arguments, {"bias": -2.0})
    visible = arguments["kv_idx"] <= arguments["q_idx"]
    actual = torch.where(visible, weights, 0.0) @ v
    expected = torch.zeros(BATCH, HEADS, QO_LEN, 4)
    for row in range(QO_LEN):
        seen = row + KV_LEN - QO_LEN + 1
        weight = 1 / (1 + torch.exp(2.0 - arguments["score"][:, :, row, :seen]))
        expected[:, :, row] = torch.einsum("bhk,bhkd->bhd", weight, v[:, :, :seen])
    assert_close(actual, expected, dtype=torch.float32)
