"""`attn_implementation="attnhub"` on small models, against the eager attention of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnhub.errors import InvalidArgument

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from transformers import AttentionInterface, AttentionMaskInterface

from attnhub.integrations.transformers import register
from attnhub.integrations.transformers.dense import dense_attention
from attnhub.integrations.transformers.mask import attention_mask
from tests.integrations.tiny import MODELS, build, ids

# Logits reach 6; float32 rounding over two layers leaves 5e-6.
CLOSE = {"rtol": 0.0, "atol": 3e-5}

LEFT = torch.ones(2, 13, dtype=torch.int64)
LEFT[0, :4] = 0
RIGHT = LEFT.flip(1)
HOLE = torch.ones_like(LEFT)
HOLE[0, 4:7] = 0
PACKED = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1, 2]])


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    register()


def logits(name: str, implementation: str, tokens: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return build(name, implementation)(tokens, **inputs).logits


@pytest.mark.parametrize("padding", [None, LEFT, RIGHT], ids=["whole", "left", "right"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama", id="llama: two query heads for each KV head"),
        pytest.param("mistral", id="mistral: a window of 5 in every layer"),
        pytest.param("gemma2", id="gemma2: soft cap, own scale, a window in every other layer"),
        pytest.param("gpt_oss", id="gpt_oss: sinks, a window in every other layer"),
        pytest.param("qwen2_moe", id="qwen2_moe: its attention module keeps quiet of the window"),
        pytest.param("llama4", id="llama4: chunks of 4"),
        pytest.param("bert", id="bert: not causal"),
        pytest.param("modernbert", id="modernbert: a window open both ways"),
    ],
)
def test_prefill_equals_eager(name: str, padding: torch.Tensor | None) -> None:
    tokens = ids(2, 13)
    got, expected = (
        logits(name, implementation, tokens, attention_mask=padding)
        for implementation in ("attnhub", "eager")
    )
    rows = slice(None) if padding is None else padding.bool()
    torch.testing.assert_close(got[rows], expected[rows], **CLOSE)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        pytest.param("mistral", {"attention_mask": HOLE}, id="padding between tokens"),
        pytest.param("mistral", {"is_causal": False}, id="a window, made open both ways"),
        pytest.param("llama", {"is_causal": False, "attention_mask": LEFT}, id="made not causal"),
    ],
)
def test_unusual_masks_equal_eager(name: str, inputs: dict[str, Any]) -> None:
    got, expected = (
        logits(name, implementation, ids(2, 13), **inputs)
        for implementation in ("attnhub", "eager")
    )
    rows = inputs.get("attention_mask", torch.ones(2, 13)).bool()
    torch.testing.assert_close(got[rows], expected[rows], **CLOSE)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    tokens = ids(1, 13)
    got = logits(name, "attnhub", tokens, position_ids=PACKED, use_cache=False)
    alone = [logits(name, "eager", part) for part in tokens.split([7, 3, 3], dim=1)]
    torch.testing.assert_close(got, torch.cat(alone, dim=1), **CLOSE)


def test_own_bool_mask() -> None:
    mask = torch.rand(2, 1, 13, 13, generator=torch.Generator().manual_seed(2)) > 0.5
    mask |= torch.eye(13, dtype=torch.bool)  # a row that sees nothing has no meaning in eager
    bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    got = logits("llama", "attnhub", ids(2, 13), attention_mask=mask)
    expected = logits("llama", "eager", ids(2, 13), attention_mask=bias)
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize(
    "cache",
    [
        pytest.param("dynamic", id="dynamic: as long as the tokens"),
        pytest.param("static", id="static: longer than the tokens, with room left"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_generation_equals_eager(name: str, cache: str) -> None:
    answers = [
        build(name, implementation).generate(
            ids(2, 13),
            attention_mask=LEFT,
            max_new_tokens=12,
            do_sample=False,
            cache_implementation=cache,
        )
        for implementation in ("attnhub", "eager")
    ]
    assert answers[0].shape == (2, 25)
    assert answers[0].tolist() == answers[1].tolist()


def test_masks_stay_small() -> None:
    """Only what is neither causal, window nor padding costs len * kv_len."""
    plain = {"batch_size": 2, "q_length": 13, "kv_length": 13}
    assert attention_mask(**plain) is None
    assert attention_mask(**plain, attention_mask=torch.ones(2, 13, dtype=torch.bool)) is None
    padded = attention_mask(**plain, attention_mask=LEFT.bool())
    assert padded is not None
    assert padded.tolist() == LEFT.bool().tolist()
    window = attention_mask(**plain, local_size=5)
    assert window is not None
    assert window.shape == (2, 1, 1, 5, 0)
    both = attention_mask(**plain, attention_mask=LEFT.bool(), local_size=5)
    assert both is not None
    assert both.shape == (2, 1, 1, 5, 13)
    assert both.untyped_storage().nbytes() == 26


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        pytest.param("llama", {"use_cache": False}, id="exact mask: packed sequences may come"),
        pytest.param("llama", {"use_cache": True}, id="no mask"),
        pytest.param("gemma2", {"use_cache": True}, id="window and soft cap"),
        pytest.param("gpt_oss", {"attention_mask": LEFT}, id="window, sinks and padding"),
    ],
)
def test_compiles_to_one_graph(name: str, inputs: dict[str, Any]) -> None:
    model = build(name, "attnhub")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        got, expected = (each(ids(2, 13), **inputs).logits for each in (compiled, model))
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        pytest.param("cu_seq_lens_q", torch.tensor([0, 13]), id="packed lengths"),
        pytest.param("output_attentions", True, id="weights that are never formed"),
        pytest.param("temperature_tuning", 0.5, id="a keyword that nobody knows"),
    ],
)
def test_keywords_that_are_not_served_are_refused(keyword: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"{keyword} is .*, which attnhub does not serve"):
        logits("llama", "attnhub", ids(1, 13), **{keyword: value})


def test_keywords_that_are_not_set_are_accepted() -> None:
    unset = {"cu_seq_lens_q": None, "temperature_tuning": None, "output_attentions": False}
    got = logits("llama", "attnhub", ids(1, 13), **unset, num_items_in_batch=torch.tensor(13))
    torch.testing.assert_close(got, logits("llama", "attnhub", ids(1, 13)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        pytest.param("dropout", 0.1, "dropout is 0.1.*call model.eval", id="dropout"),
        pytest.param("head_mask", torch.ones(4), "head_mask is a tensor", id="head mask"),
        pytest.param("position_bias", torch.ones(1), "position_bias is a tensor", id="T5's bias"),
        pytest.param("scaling", torch.ones(1), "scaling is a tensor", id="a learned scale"),
        pytest.param("deterministic", True, "deterministic is True", id="ModernBERT's flag"),
        pytest.param(
            "attention_mask",
            torch.zeros(1, 1, 3, 3),
            "dtype float32, needs bool",
            id="a mask that is a bias",
        ),
        pytest.param(
            "attention_mask",
            torch.ones(1, 4, 3, 3, dtype=torch.bool),
            r"shape \[1, 4, 3, 3\], needs \[batch, 1, len, kv_len\]",
            id="a mask for each head",
        ),
        pytest.param(
            "attention_mask",
            torch.ones(1, 4, dtype=torch.bool),
            r"shape \[1, 4\], needs \[1, 3\]",
            id="padding of other keys",
        ),
        pytest.param(
            "attention_mask",
            torch.ones(1, 3, 3, dtype=torch.bool),
            r"shape \[1, 3, 3\]; give \[batch, kv_len\]",
            id="a mask of three dimensions, once our own form of a window",
        ),
        pytest.param(
            "attention_mask",
            torch.ones(1, 2, 2, 3, 3, dtype=torch.bool),
            r"shape \[1, 2, 2, 3, 3\]; give",
            id="a mask for each head of each group",
        ),
    ],
)
def test_arguments_that_are_not_served_are_refused(
    keyword: str, value: object, message: str
) -> None:
    heads = torch.zeros(1, 4, 3, 16)
    arguments = {"attention_mask": None, keyword: value}
    with pytest.raises(InvalidArgument, match=message):
        dense_attention(torch.nn.Module(), heads, heads, heads, **arguments)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(torch.ones(2, 13, 13).tril() > 0, id="bool"),
        pytest.param(torch.ones(2, 13, 13), id="float"),
        pytest.param(torch.ones(2, 1, 13) > 0, id="padding with a dimension too many"),
    ],
)
def test_a_models_mask_of_three_dimensions_is_refused(name: str, mask: torch.Tensor) -> None:
    """Read as padding in a window of 13 it would give numbers, and wrong ones."""
    message = r"attention_mask has shape \[2, .*13\]; give \[batch, kv_len\]"
    with pytest.raises(InvalidArgument, match=message):
        logits(name, "attnhub", ids(2, 13), attention_mask=mask)


def test_gradients_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"forward only.*torch\.no_grad"):
        build("llama", "attnhub")(ids(1, 13))


def test_registering_again_changes_nothing() -> None:
    before = (
        dict(AttentionInterface._global_mapping),
        dict(AttentionMaskInterface._global_mapping),
    )
    register()
    after = (dict(AttentionInterface._global_mapping), dict(AttentionMaskInterface._global_mapping))
    assert after == before
    assert {"attnhub", "paged|attnhub"} <= after[0].keys()


def test_every_model_is_tested() -> None:
    """`tiny.MODELS` holds no model that a test here forgot."""
    cases = test_prefill_equals_eager.pytestmark[0].args[1]
    assert {case.values[0] for case in cases} == MODELS.keys()
