"""The adapters on the real model: prefill, generation, padded batches, continuous batching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from attnhub.integrations.transformers import register
from tests.integrations.conftest import GenerateBatch
from tests.model.hf import llama_from

if TYPE_CHECKING:
    from plain import PlainModel
    from tokenizer import Tokenizer

# Logits reach 41; float32 rounding over 30 layers leaves about 1e-4.
CLOSE = {"rtol": 0.0, "atol": 1e-3}
QUESTIONS = (
    "What is the capital of France?",
    "Name the three primary colors.",
    "Write one sentence about the sea, the wind and a small boat that comes home late at night.",
)
NEW = 12


@pytest.fixture(scope="module")
def model(plain: PlainModel) -> Any:
    """SmolLM2 in transformers; its weights are those of the plain model."""
    register()
    return llama_from(plain.config, plain.weights)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.chat(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def answers(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What SDPA generates for each prompt alone."""
    model.set_attn_implementation("sdpa")
    return [
        model.generate(torch.tensor([p]), max_new_tokens=NEW, do_sample=False)[0, len(p) :].tolist()
        for p in prompts
    ]


def logits(model: Any, implementation: str, tokens: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(tokens).logits


@pytest.mark.parametrize("other", ["eager", "sdpa"])
def test_prefill(model: Any, prompts: list[list[int]], other: str) -> None:
    tokens = torch.tensor([prompts[2]])
    got, expected = logits(model, "attnhub", tokens), logits(model, other, tokens)
    torch.testing.assert_close(got, expected, **CLOSE)


def test_answers_are_sensible(answers: list[list[int]], tokenizer: Tokenizer) -> None:
    """The tests below would pass on a broken model too, if this one did not."""
    assert tokenizer.decode(answers[0]).startswith("The capital of France is Paris.")


def test_generation_from_the_cache(
    model: Any, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    model.set_attn_implementation("attnhub")
    tokens = torch.tensor([prompts[0]])
    output = model.generate(tokens, max_new_tokens=NEW, do_sample=False)
    assert output[0, tokens.shape[1] :].tolist() == answers[0]


def test_left_padded_batch(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> None:
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    padding = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    model.set_attn_implementation("attnhub")
    output = model.generate(tokens, attention_mask=padding, max_new_tokens=NEW, do_sample=False)
    assert output[:, longest:].tolist() == answers


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"block_size": 16, "max_batch_tokens": 256}, id="whole prompts"),
        pytest.param({"block_size": 4, "max_batch_tokens": 24}, id="prompts cut in chunks"),
    ],
)
def test_continuous_batching(
    model: Any,
    prompts: list[list[int]],
    answers: list[list[int]],
    config: dict[str, int],
    generate_batch: GenerateBatch,
) -> None:
    model.set_attn_implementation("paged|attnhub")
    assert generate_batch(model, prompts, new_tokens=NEW, num_blocks=64, **config) == answers
