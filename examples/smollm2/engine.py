"""Continuous batching: requests join and leave between steps, and share one paged KV cache.

A step takes what each request still has to compute, the oldest request first, until the step is
full: one token of those that are writing, and as much of a prompt as there is room for. So a long
prompt is cut into chunks and holds nobody up (Yu et al., "Orca", 2022; Agrawal et al.,
"Sarathi-Serve", 2024). Pages are given out as requests grow (Kwon et al., "PagedAttention", 2023).
When none is left, the youngest request gives its pages back and computes its tokens again later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from model import Batch, Model
from torch import Tensor

import attnhub
from attnhub import sampling


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and how to continue it; `answer` grows from step to step.

    Temperature 0 takes the most likely token. Otherwise a token is drawn from the likeliest ones
    that together hold `top_p`, by `seed` and its number in the answer: the same whatever else runs.
    """

    prompt: list[int]
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    keep_logits: bool = False

    answer: list[int] = field(default_factory=list, init=False)
    logits: list[Tensor] = field(default_factory=list, init=False)  # [vocab] for each answer token
    finished: bool = field(default=False, init=False)
    pages: list[int] = field(default_factory=list, init=False)  # what it owns of the cache
    cached: int = field(default=0, init=False)  # how many of its tokens are in the cache

    @property
    def tokens(self) -> list[int]:
        """Everything so far: the prompt and the answer."""
        return self.prompt + self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a step computes of one request: the tokens from `start` on."""

    request: Request
    start: int
    tokens: list[int]

    @property
    def end(self) -> int:
        """The request's length in the cache after the step."""
        return self.start + len(self.tokens)


class Engine:
    """Runs requests on a model.

    Args:
        model: the model, whose cache the engine manages from here on.
        end: the token that ends an answer; it is not part of it.
        max_step_tokens: rows of a step at most.

    Raises:
        ValueError: `max_step_tokens` is below 1.

    Example:
        engine = Engine(model, end=tokenizer.end)
        request = engine.submit(Request(prompt=tokenizer.chat("Hi")))
        while engine.queue:
            engine.step()
        print(tokenizer.decode(request.answer))
    """

    def __init__(self, model: Model, *, end: int | None = None, max_step_tokens: int = 256) -> None:
        if max_step_tokens < 1:
            raise ValueError(f"max_step_tokens={max_step_tokens}: a step needs room for 1 or more")
        self.model = model
        self.end = end
        self.max_step_tokens = max_step_tokens
        self.queue: list[Request] = []  # oldest first
        self.free = list(range(model.num_pages))

    def submit(self, request: Request) -> Request:
        """Queue a request and return it.

        Raises:
            ValueError: it has no prompt, or can become longer than the model or the cache allows.
        """
        most = min(self.model.config.context, self.model.num_pages * self.model.page_size)
        longest = len(request.prompt) + request.max_new_tokens
        if not request.prompt or request.max_new_tokens < 1 or longest > most:
            raise ValueError(
                f"a prompt of {len(request.prompt)} tokens and max_new_tokens="
                f"{request.max_new_tokens}: needs 1 or more each and together at most {most}, what "
                "the context and the pages of this model hold; shorten it or give the model pages"
            )
        self.queue.append(request)
        return request

    def step(self) -> list[Chunk]:
        """Compute one batch, then a token for each request that it completes; return the batch."""
        chunks = self._schedule()
        if not chunks:
            return chunks
        logits = self.model.forward(self._batch(chunks))
        for chunk in chunks:
            chunk.request.cached = chunk.end
        ready = [i for i, c in enumerate(chunks) if c.end == len(c.request.tokens)]
        if ready:
            self._answer([chunks[i].request for i in ready], logits[ready])
        return chunks

    def _schedule(self) -> list[Chunk]:
        """Choose the chunks of a step, with pages for their tokens."""
        chunks: list[Chunk] = []
        room = self.max_step_tokens
        for request in self.queue:
            tokens = request.tokens[request.cached :][:room]
            if not tokens or not self._grow(request, request.cached + len(tokens)):
                break  # who comes later does not overtake
            chunks.append(Chunk(request=request, start=request.cached, tokens=tokens))
            room -= len(tokens)
        return chunks

    def _grow(self, request: Request, length: int) -> bool:
        """Give `request` pages for `length` tokens, if need be those of younger requests."""
        missing = -(-length // self.model.page_size) - len(request.pages)
        younger = self.queue[self.queue.index(request) + 1 :]
        while len(self.free) < missing and younger:
            self._release(younger.pop())
        if len(self.free) < missing:
            return False
        request.pages += [self.free.pop() for _ in range(missing)]
        return True

    def _release(self, request: Request) -> None:
        self.free += request.pages
        request.pages, request.cached = [], 0

    def _batch(self, chunks: list[Chunk]) -> Batch:
        size = self.model.page_size
        pages = [c.request.pages for c in chunks]
        table = attnhub.PagedKV(
            indptr=_ints(accumulate(map(len, pages), initial=0)),
            indices=_ints(page for owned in pages for page in owned),
            last_page_len=_ints((c.end - 1) % size + 1 for c in chunks),
        )
        return Batch(
            tokens=_ints(token for c in chunks for token in c.tokens),
            qo_indptr=_ints(accumulate((len(c.tokens) for c in chunks), initial=0)),
            seq_lens=_ints(c.end for c in chunks),
            table=table,
        )

    def _answer(self, requests: list[Request], logits: Tensor) -> None:
        """Choose the next token of each request from logits [requests, vocab]."""
        tokens = self._sample(requests, logits)
        for request, row, token in zip(requests, logits, tokens, strict=True):
            if token < 0:
                raise FloatingPointError(f"the logits after {request.tokens} are not finite")
            if token != self.end:
                request.answer.append(token)
                if request.keep_logits:
                    request.logits.append(row)
            if token == self.end or len(request.answer) == request.max_new_tokens:
                request.finished = True
                self._release(request)
                self.queue.remove(request)

    def _sample(self, requests: list[Request], logits: Tensor) -> list[int]:
        def rows(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=logits.device)

        def setting(values: list[float]) -> Tensor | float:
            # One number for all of them costs less: a filter that nobody wants is left out.
            return values[0] if len(set(values)) == 1 else rows(values, torch.float32)

        params = sampling.SamplingParams(
            temperature=setting([r.temperature for r in requests]),
            top_p=setting([r.top_p for r in requests]),
        )
        seed = rows([r.seed for r in requests], torch.int64)
        offset = rows([len(r.answer) for r in requests], torch.int64)
        tokens: list[int] = sampling.sample(logits, params, seed=seed, offset=offset).tolist()
        return tokens


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
