"""Variant and Rope: validation, identity across processes, JSON and descriptions."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from attnhub.errors import AttnHubError, InvalidArgument, TraceError
from attnhub.variant import (
    LinearScaling,
    Llama3Scaling,
    ParamSpec,
    Rope,
    ScalarParam,
    TensorParam,
    Variant,
    YarnScaling,
    trace,
)
from tests.variant.cases import CASES

WRONG_SLOPES = TensorParam("alibi_slopes", 2)
LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)
YARN = YarnScaling(factor=4.0, original_max_position=32768, attention_factor=1.25)


def _slopes(score, b, h, q_idx, kv_idx):
    return score + TensorParam("alibi_slopes", 1)[h] * ScalarParam("alpha")


VARIANTS = {
    "plain": Variant(),
    "causal": Variant(causal=True),
    "window": Variant(causal=True, window=(128, 0)),
    "gemma": Variant(causal=True, soft_cap=50, scale=0.0625, window=(4096, -1)),
    "alibi": Variant(alibi=True),
    "sinks": Variant(causal=True, sinks=True),
    "rope": Variant(causal=True, rope=Rope()),
    "llama3": Variant(rope=Rope(theta=5e5, scaling=LLAMA3)),
    "yarn": Variant(rope=Rope(rotary_dim=64, interleaved=True, scaling=YARN)),
    "linear": Variant(rope=Rope(scaling=LinearScaling(factor=2))),
    "slopes": Variant(alibi=True, sinks=True, score_mod=_slopes),
    "no_softmax": Variant(softmax=False, score_mod=lambda s, b, h, q, k: torch.sigmoid(s)),
    **{case.name: Variant(**{case.hook: case.symbolic()}) for case in CASES},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_copies_are_equal(variant: Variant) -> None:
    copies = [
        Variant.from_json(variant.to_json()),
        pickle.loads(pickle.dumps(variant)),
        dataclasses.replace(variant),
    ]
    for copy in copies:
        assert copy == variant
        assert hash(copy) == hash(variant)
        assert copy.digest == variant.digest
        assert copy.params == variant.params
        assert copy.features == variant.features
        assert copy.describe() == variant.describe()


def test_variants_that_differ_have_different_digests() -> None:
    assert len(set(VARIANTS.values())) == len({v.digest for v in VARIANTS.values()})
    assert len(set(VARIANTS.values())) == len(VARIANTS)


def test_digest_and_import_in_another_process() -> None:
    """Digests survive another hash seed; torch is loaded only by mods that use it."""
    script = (
        "import sys; from attnhub.variant import Llama3Scaling, Rope, Variant, trace\n"
        "scaling = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4,"
        " original_max_position=8192)\n"
        "rope = Variant(rope=Rope(theta=5e5, scaling=scaling))\n"
        "mod = Variant(score_mod=lambda s, b, h, q, k: s + (q - k))\n"
        "assert 'torch' not in sys.modules\n"
        "print(rope.digest, mod.digest)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [VARIANTS["llama3"].digest, VARIANTS["relative"].digest]


def test_digests_do_not_change_between_releases() -> None:
    """Compiled kernels are stored under these; a change of the canonical form loses them all."""
    assert VARIANTS["plain"].digest[:16] == "44136fa355b3678a"
    assert VARIANTS["gemma"].digest[:16] == "55ac6864f124646f"
    assert VARIANTS["table"].digest[:16] == "a61c32bfb81f2ba8"
    table = VARIANTS["table"].hook("score_mod")
    assert table is not None
    assert table.digest[:16] == "a8efcb025c3bca10"


def test_numbers_and_open_windows_are_normalised() -> None:
    assert Variant(soft_cap=30) == Variant(soft_cap=30.0)
    assert Variant(soft_cap=30).digest == Variant(soft_cap=30.0).digest
    assert Variant(scale=1).to_json() == '{"scale":1.0}'
    assert Variant(window=(-1, -1)) == Variant()
    assert Variant(window=(-1, -1)).window is None


@pytest.mark.parametrize(
    ("variant", "band"),
    [
        pytest.param(Variant(), (-1, -1), id="open"),
        pytest.param(Variant(causal=True), (-1, 0), id="causal"),
        pytest.param(Variant(window=(4, 2)), (4, 2), id="window"),
        pytest.param(Variant(window=(-1, 2)), (-1, 2), id="left-open"),
        pytest.param(Variant(causal=True, window=(4, 2)), (4, 0), id="causal-is-tighter"),
        pytest.param(Variant(causal=True, window=(4, -1)), (4, 0), id="causal-closes"),
    ],
)
def test_band(variant: Variant, band: tuple[int, int]) -> None:
    assert variant.band == band


@pytest.mark.parametrize(
    ("name", "features", "params"),
    [
        pytest.param("plain", set(), [], id="plain"),
        pytest.param("gemma", {"causal", "soft_cap", "window"}, [], id="gemma"),
        pytest.param("sinks", {"causal", "sinks"}, ["sinks"], id="sinks"),
        pytest.param("yarn", {"rope"}, [], id="rope"),
        pytest.param("no_softmax", {"score_mod", "softmax_off"}, [], id="softmax-off"),
        pytest.param(
            "slopes",
            {"alibi", "score_mod", "sinks"},
            ["alibi_slopes", "sinks", "alpha"],
            id="shared-parameter",
        ),
        pytest.param("document", {"mask_mod"}, ["document_id"], id="mask"),
        pytest.param("key_gain", {"key_mod"}, ["gain"], id="key"),
        pytest.param("rotation", {"query_mod"}, [], id="query"),
        pytest.param("output_gate", {"output_mod"}, ["gate"], id="output"),
    ],
)
def test_features_and_params(name: str, features: set[str], params: list[str]) -> None:
    variant = VARIANTS[name]
    assert variant.features == features
    assert [spec.name for spec in variant.params] == params
    assert Variant(alibi=True).params == (
        ParamSpec(name="alibi_slopes", kind="tensor", ndim=1, dtype="float32"),
    )


def test_hooks_hold_graphs() -> None:
    variant = Variant(
        output_mod=lambda x, b, h, q, d: x * 2,
        mask_mod=trace("mask_mod", lambda b, h, q, k: q >= k),
    )
    assert [name for name, _ in variant.hooks] == ["mask_mod", "output_mod"]
    assert variant.hook("mask_mod") is variant.mask_mod
    assert variant.hook("score_mod") is None
    assert variant == Variant(
        mask_mod=lambda b, h, q, k: q >= k, output_mod=lambda x, b, h, q, d: x * 2
    )
    assert dataclasses.replace(variant, causal=True).hooks == variant.hooks


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("plain", "plain softmax attention", id="plain"),
        pytest.param("gemma", "causal, window=(4096, -1), soft_cap=50, scale=0.0625", id="gemma"),
        pytest.param("sinks", "causal, sinks", id="sinks"),
        pytest.param("rope", "causal, rope(theta=10000)", id="rope"),
        pytest.param("linear", "rope(theta=10000, LinearScaling(factor=2.0))", id="scaled-rope"),
        pytest.param("no_softmax", "no softmax, score_mod = sigmoid(score)", id="mod"),
        pytest.param(
            "slopes", "alibi, sinks, score_mod = score + alibi_slopes[h] * alpha", id="params"
        ),
    ],
)
def test_describe(name: str, text: str) -> None:
    assert VARIANTS[name].describe() == text


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param({"causal": 1}, "causal=1 is of type int; give True or False", id="int"),
        pytest.param({"softmax": None}, "softmax=None is of type NoneType", id="none"),
        pytest.param({"soft_cap": True}, "soft_cap=True is of type bool", id="bool-cap"),
        pytest.param({"soft_cap": 0.0}, "soft_cap=0.0 is out of range", id="zero-cap"),
        pytest.param({"soft_cap": float("inf")}, "give a finite number > 0", id="infinite-cap"),
        pytest.param({"scale": -1.0}, "scale=-1.0 is out of range", id="negative-scale"),
        pytest.param({"scale": "1"}, "scale='1' is of type str", id="text-scale"),
        pytest.param({"window": 128}, "window=128 is not a pair", id="window-int"),
        pytest.param({"window": [4, 0]}, "give a tuple", id="window-list"),
        pytest.param({"window": (1, 2, 3)}, "is not a pair", id="window-triple"),
        pytest.param({"window": (-2, 0)}, "window left=-2 is too small", id="window-left"),
        pytest.param({"window": (0, True)}, "window right=True is of type bool", id="window-bool"),
        pytest.param({"rope": 1e4}, "rope=10000.0 is of type float; give a Rope", id="rope"),
        pytest.param({"sinks": True, "softmax": False}, "drop sinks or keep softmax", id="sinks"),
        pytest.param(
            {
                "alibi": True,
                "mask_mod": lambda b, h, q, k: TensorParam("alibi_slopes", 2)[h, q] > 0,
            },
            "'alibi_slopes' is declared twice",
            id="parameter-clash",
        ),
    ],
)
def test_wrong_values(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        Variant(**fields)


def test_mods_are_traced_by_the_constructor() -> None:
    with pytest.raises(TraceError, match="query_mod: the function takes"):
        Variant(query_mod=lambda x: x)
    with pytest.raises(AttnHubError, match="key_mod was given a graph"):
        Variant(key_mod=trace("query_mod", lambda x, b, h, q, d: x))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(lambda: Rope(theta=0), "theta=0 is out of range", id="theta"),
        pytest.param(lambda: Rope(rotary_dim=63), "rotary_dim=63 is odd", id="odd"),
        pytest.param(lambda: Rope(rotary_dim=0), "rotary_dim=0 is too small", id="empty"),
        pytest.param(lambda: Rope(interleaved=0), "interleaved=0 is of type int", id="flag"),
        pytest.param(lambda: Rope(scaling=2.0), "give LinearScaling, Llama3Scaling", id="scaling"),
        pytest.param(lambda: LinearScaling(factor=0), "factor=0 is out of range", id="factor"),
        pytest.param(
            lambda: dataclasses.replace(LLAMA3, low_freq_factor=4),
            "high_freq_factor=4.0 is not above low_freq_factor=4.0",
            id="llama3-order",
        ),
        pytest.param(
            lambda: dataclasses.replace(YARN, beta_slow=32),
            "beta_fast=32.0 is not above beta_slow=32.0",
            id="yarn-order",
        ),
        pytest.param(
            lambda: dataclasses.replace(YARN, attention_factor=0.0),
            "attention_factor=0.0 is out of range",
            id="yarn-factor",
        ),
        pytest.param(
            lambda: dataclasses.replace(YARN, original_max_position=4096.0),
            "original_max_position=4096.0 is of type float",
            id="yarn-position",
        ),
    ],
)
def test_wrong_ropes(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        make()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[1]", id="list"),
        pytest.param('{"casual":true}', id="unknown-field"),
        pytest.param('{"window":3}', id="window"),
        pytest.param('{"rope":{"theta":1.0}}', id="rope"),
        pytest.param('{"score_mod":null}', id="mod"),
    ],
)
def test_wrong_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not the JSON of a Variant"):
        Variant.from_json(text)
