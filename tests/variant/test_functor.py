"""Hooks written by hand in C++: values, text, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import attnhub
from attnhub import explain
from attnhub.errors import InvalidArgument
from attnhub.plugin import VariantCode
from attnhub.variant import Functor, ScalarParam, TensorParam, Variant

SOURCE = """
#include "attnhub/attention/variant.cuh"
#include "attnhub/attention/variant_params.cuh"
namespace mine {
struct Biased : attnhub::PlainVariant {
  static constexpr bool kTransformsScores = true;
  attnhub::TensorParam<float, 1> bias;
  attnhub::ScalarParam<float> factor;
  ATTNHUB_DEVICE float score(const attnhub::ScorePosition& at, float score) const {
    return factor.get() * score + bias.at(at.qo_head);
  }
};
}  // namespace mine
"""
PARAMS = (TensorParam("bias", ndim=1), ScalarParam("factor"))
FIELDS: dict[str, Any] = {"source": SOURCE, "struct": "mine::Biased", "hooks": ("score_mod",)}
BIASED = Functor(**FIELDS, params=PARAMS)


def test_is_a_value() -> None:
    variant = Variant(causal=True, functor=BIASED)
    again = Variant(causal=True, functor=Functor(**FIELDS, params=PARAMS))
    assert variant == again
    assert hash(variant) == hash(again)
    assert Variant.from_json(variant.to_json()) == variant
    assert variant.features == {"causal", "score_mod"}
    assert [spec.name for spec in variant.params] == ["bias", "factor"]
    assert variant != Variant(causal=True, functor=Functor(**FIELDS, params=PARAMS[::-1]))


def test_code() -> None:
    code = VariantCode.of(Variant(functor=BIASED))
    assert "using EmittedVariant = ::mine::Biased;" in code.source
    assert "static_assert(mine::Biased::kTransformsScores == true" in code.source
    assert "static_assert(mine::Biased::kMasks == false" in code.source
    assert [field.name for field in code.params.fields][-1] == "factor.number"
    bias = torch.zeros(4)
    assert code.values({"bias": bias, "factor": 2.0}) == (bias.data_ptr(), 1, 4, 0, 2.0)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"source": " "}, "give the C++ text"),
        ({"struct": "not a name"}, "give the struct's name"),
        ({"hooks": ("score",)}, "give some of "),
        ({"params": ("bias",)}, "give ScalarParam(...) or TensorParam(...)"),
        ({"params": (PARAMS[0], PARAMS[0])}, "one name stands for two members"),
    ],
    ids=str,
)
def test_refuses(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        Functor(**{**FIELDS, "params": PARAMS, **changed})


@pytest.mark.parametrize(
    "also",
    [{"alibi": True}, {"soft_cap": 3.0}, {"sinks": True}, {"mask_mod": lambda b, h, q, k: q > k}],
)
def test_is_all_hooks_or_none(also: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="a functor has all hooks"):
        Variant(functor=BIASED, **also)


def test_another_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="give a Functor or None"):
        Variant(functor=SOURCE)  # type: ignore[arg-type]


def test_what_cannot_compile_it_says_so() -> None:
    decision = explain(
        "attention",
        device="cpu",
        num_qo_heads=4,
        num_kv_heads=4,
        head_dim=64,
        dtype="float32",
        variant=Variant(functor=BIASED),
    )
    assert decision.chosen is None
    assert "functor" in str(decision)


def test_with_the_public_call() -> None:
    q, k, v = (torch.randn(5, 2, 64) for _ in "qkv")
    with pytest.raises(attnhub.errors.NoBackend, match="functor"):
        attnhub.attention(
            q, k, v, variant=Variant(functor=BIASED), params={"bias": torch.zeros(2), "factor": 1.0}
        )
