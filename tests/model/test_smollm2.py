"""The real model: its tokenizer, its weights, and the plain PyTorch model run on them."""

from __future__ import annotations

import zlib
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import pytest
import torch
from plain import DenseCache, PlainModel
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from tokenizer import Tokenizer

# Real English prose that every Python carries; 4,000 characters are about 1,000 tokens.
PROSE = "\n\n".join(topics.values())[:4000]


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> torch.Tensor:
    """The first 512 tokens of the prose."""
    return torch.tensor(tokenizer.encode(PROSE)[:512])


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        pytest.param("Hello there", [19556, 665], id="words"),
        pytest.param("in 2024", [254, 216, 34, 32, 34, 36], id="each digit on its own"),
        pytest.param("é漢", [2756, 177, 137, 112], id="bytes of characters not in the vocabulary"),
        pytest.param("a\tb\r\n  12", [81, 197, 82, 2738, 256, 33, 34], id="white space"),
        pytest.param("<|im_end|>x", [2, 104], id="a special token"),
        pytest.param("", [], id="empty"),
    ],
)
def test_encode_and_decode(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, keep_special=True) == text


def test_prose_round_trip(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(PROSE)) == PROSE


def test_decode_drops_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.end == 2
    assert tokenizer.decode([19556, tokenizer.end]) == "Hello"


def test_chat_prompt(tokenizer: Tokenizer) -> None:
    system = {"role": "system", "content": "Be brief."}
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.chat_text([system, {"role": "user", "content": "Hi"}]) == expected
    assert tokenizer.decode(tokenizer.chat("Hi"), keep_special=True) == tokenizer.chat_text("Hi")
    assert tokenizer.chat_text("Hi").endswith(expected.partition("Be brief.<|im_end|>\n")[2])
    assert tokenizer.chat_text("Hi").startswith("<|im_start|>system\n")  # the model's own


def test_perplexity_of_prose(plain: PlainModel, tokens: torch.Tensor) -> None:
    # 512 tokens are the first 2,232 characters, the same from Python 3.10 to 3.13.
    if zlib.crc32(PROSE[:2300].encode()) != 0x9F61A7DC:
        pytest.skip("this Python's manual begins with other words than the ones measured")
    perplexity = cross_entropy(plain.forward(tokens)[:-1], tokens[1:]).exp()
    # transformers gives 17.54 for this file and text; a RoPE base of 1e4 would give 19.5.
    assert float(perplexity) == pytest.approx(17.54, abs=0.05)


def test_chat_answer(plain: PlainModel, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.chat("What is the capital of France?")
    answer = plain.generate(prompt, max_new_tokens=32, end=tokenizer.end)
    assert tokenizer.decode(answer) == "The capital of France is Paris."


def test_generation_stops_at_the_limit(plain: PlainModel, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The capital of France is")
    assert plain.generate(prompt, max_new_tokens=1) == tokenizer.encode(" Paris")
    assert plain.generate(prompt, max_new_tokens=0) == []


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([40, 1, 1, 1], id="prefill then decode"),
        pytest.param([1, 20, 22], id="chunked prefill: several queries after cached keys"),
    ],
)
def test_steps_equal_the_full_forward(
    plain: PlainModel, tokens: torch.Tensor, steps: list[int]
) -> None:
    tokens = tokens[: sum(steps)]
    cache = DenseCache()
    logits = torch.cat([plain.forward(step, cache) for step in tokens.split(steps)])
    assert cache.tokens == sum(steps)
    torch.testing.assert_close(logits, plain.forward(tokens), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((0,), id="empty"),
        pytest.param((1, 3), id="a batch"),
        pytest.param((8193,), id="one more than the context"),
    ],
)
def test_tokens_of_other_shapes_are_refused(plain: PlainModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"accepted is \[len\] with 1 to 8192 tokens"):
        plain.forward(torch.zeros(shape, dtype=torch.int64))


def test_logits_equal_those_of_transformers(plain: PlainModel, tokens: torch.Tensor) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    from .hf import llama_from

    llama = llama_from(plain.config, plain.weights)
    with torch.no_grad():
        expected = llama(tokens[None]).logits[0]
    # Logits reach 41; float32 rounding over 30 layers leaves about 1e-4.
    torch.testing.assert_close(plain.forward(tokens), expected, rtol=0, atol=1e-3)
