"""Variants that users write, traced from Python or given as a struct in C++, in the emulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import Functor, ScalarParam, TensorParam
from attnhub.plugin import AttentionProblem, Registry, Variant, describe
from attnhub.testing.compare import assert_close
from attnhub.testing.emulator import BuildFailed, EmulatedGpu
from attnhub.testing.generators import indptr, page_table, paged_cache, seeded
from attnhub_fa2_cuda import manifest
from attnhub_fa2_cuda.shares import may_overlap

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 64, 8
QO_LENS, KV_LENS = [20, 1, 3], [70, 150, 9]
MOST = 512  # of the distance in the table

bias = ScalarParam("bias")
document = TensorParam("document", ndim=2, dtype="int32")
table = TensorParam("table", ndim=2)


class Example(NamedTuple):
    variant: Variant
    params: Mapping[str, Tensor | float]


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(7))


EXAMPLES = {
    "FlashSigmoid": Example(
        Variant(
            causal=True,
            softmax=False,
            score_mod=lambda score, b, h, q_idx, kv_idx: torch.sigmoid(score + bias),
        ),
        {"bias": -2.0},
    ),
    "documents": Example(
        Variant(
            causal=True,
            mask_mod=lambda b, h, q_idx, kv_idx: document[b, q_idx] == document[b, kv_idx],
        ),
        {"document": torch.arange(3 * 150, dtype=torch.int32).view(3, 150) // 40},
    ),
    "soft cap and ALiBi": Example(
        Variant(causal=True, soft_cap=4.0, alibi=True), {"alibi_slopes": values(HEADS).abs()}
    ),
    "table of distances": Example(
        Variant(
            score_mod=lambda score, b, h, q_idx, kv_idx: (
                score + table[h, torch.clamp(q_idx - kv_idx + MOST // 2, 0, MOST - 1)]
            )
        ),
        {"table": values(HEADS, MOST)},
    ),
}

STRUCTS = """
#include "attnhub/attention/variant.cuh"
#include "attnhub/attention/variant_params.cuh"

namespace mine {

struct FlashSigmoid : attnhub::PlainVariant {
  static constexpr bool kTransformsScores = true;
  static constexpr bool kSoftmax = false;
  attnhub::ScalarParam<float> bias;

  ATTNHUB_DEVICE float score(const attnhub::ScorePosition&, float score) const {
    return attnhub::sigmoid(score + bias.get());
  }
};

struct Documents : attnhub::PlainVariant {
  static constexpr bool kMasks = true;
  attnhub::TensorParam<attnhub::i32, 2> document;

  ATTNHUB_DEVICE bool keeps(const attnhub::ScorePosition& at) const {
    return document.at(at.request, at.q_idx()) == document.at(at.request, at.kv_idx);
  }
};

}  // namespace mine
"""
BY_HAND = {
    "FlashSigmoid": Variant(
        causal=True,
        softmax=False,
        functor=Functor(
            source=STRUCTS, struct="mine::FlashSigmoid", hooks=("score_mod",), params=(bias,)
        ),
    ),
    "documents": Variant(
        causal=True,
        functor=Functor(
            source=STRUCTS, struct="mine::Documents", hooks=("mask_mod",), params=(document,)
        ),
    ),
}


@pytest.fixture(autouse=True)
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    emulated_gpu.num_sms = 3
    return emulated_gpu


def attend(backend: str, example: Example) -> Tensor:
    """Of a prompt, of decode and of more queries than usual, from pages with NaN between."""
    half = torch.float16
    attn = attnhub.BatchAttention(
        HEADS,
        KV_HEADS,
        DIM,
        attnhub.DTypes(half, half, torch.float32),
        attnhub.Paged(PAGE),
        variant=example.variant,
        device="cpu",
        backend=backend,
    )
    pages = page_table(KV_LENS, PAGE, generator=seeded(1))
    k, v = (values(sum(KV_LENS), KV_HEADS, DIM).roll(i, 0).half() for i in range(2))
    attn.plan(indptr(QO_LENS), attnhub.PagedKV(pages.indptr, pages.indices, pages.last_page_len))
    q = values(sum(QO_LENS), HEADS, DIM).half()
    return attn.run(q, paged_cache(k, v, KV_LENS, pages), params=example.params)


@pytest.mark.parametrize("name", EXAMPLES)
def test_traced(name: str) -> None:
    example = EXAMPLES[name]
    assert_close(attend("fa2_cuda", example), attend("reference", example), dtype=torch.float16)


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    """A struct that says what a traced variant says gives its very bits."""
    traced = EXAMPLES[name]
    given = Example(BY_HAND[name], traced.params)
    assert torch.equal(attend("fa2_cuda", given), attend("fa2_cuda", traced))


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -2.4e38, -math.inf])
def test_scores_as_low_as_floats_are(lowest: float) -> None:
    """As additive masks have them: of whole blocks at first, and of all keys of some rows."""
    variant = Variant(
        score_mod=lambda score, b, h, q_idx, kv_idx: torch.where(
            (kv_idx < 100) & (q_idx % 3 > 0), lowest, score
        )
    )
    example = Example(variant, {})
    assert_close(attend("fa2_cuda", example), attend("reference", example), dtype=torch.float16)


@pytest.mark.parametrize("name", ["Params", "Format", "Shape0", "Share"])
def test_any_name_of_a_struct(name: str) -> None:
    source = STRUCTS.replace("namespace mine {", "").replace("}  // namespace mine", "")
    functor = Functor(
        source=source.replace("Documents", name),
        struct=name,
        hooks=("mask_mod",),
        params=(document,),
    )
    traced = EXAMPLES["documents"]
    given = Example(Variant(causal=True, functor=functor), traced.params)
    assert torch.equal(attend("fa2_cuda", given), attend("fa2_cuda", traced))


def test_launches_overlap_unless_tensors_of_variants_may_change() -> None:
    """What a variant looks up may be read before the kernel waits for what is ahead."""
    facts = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 64, "dtype": "float16"}

    def overlaps(device: str, variant: Variant) -> bool:
        problem = AttentionProblem.of(describe(device), variant=variant, **facts)
        return may_overlap(problem)

    assert overlaps("h100", Variant(causal=True))
    assert overlaps("h100", EXAMPLES["FlashSigmoid"].variant)
    assert not overlaps("h100", EXAMPLES["table of distances"].variant)
    assert not overlaps("a100", Variant(causal=True))


def test_a_struct_that_is_not_what_its_functor_says() -> None:
    functor = Functor(source=STRUCTS, struct="mine::Documents", hooks=(), params=(document,))
    example = Example(Variant(functor=functor), EXAMPLES["documents"].params)
    with pytest.raises(BuildFailed, match="as its Functor says"):
        attend("fa2_cuda", example)
