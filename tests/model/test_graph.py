"""The real model decodes inside a CUDA graph: the tokens are those of the reference backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine import Engine, Request
from model import Batch, Model
from torch import Tensor

import attnhub
from attnhub import PagedKV

if TYPE_CHECKING:
    from plain import PlainModel
    from tokenizer import Tokenizer

QUESTIONS = ("What is the capital of France?", "Name the primary colors.", "Who are you?")
NEW_TOKENS, PAGE, PAGES = 32, 16, 64
#: float16 has three bits more than bfloat16, so that near ties fall alike.
DTYPE = torch.float16


class GraphModel(Model):
    """Prompts as ever; steps of one token for each request are replays of one CUDA graph."""

    def __init__(self, *args: Any, backend: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attention = self._attention(backend)
        self._decode = self._attention(
            backend,
            graph=attnhub.GraphLimits(
                max_batch=len(QUESTIONS),
                max_qo_tokens=len(QUESTIONS),
                max_pages=PAGES,
                max_qo_len=1,
            ),
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self.replays = 0

    def _attention(self, backend: str, **options: Any) -> attnhub.BatchAttention:
        config = self.config
        return attnhub.BatchAttention(
            config.heads,
            config.kv_heads,
            config.head_dim,
            DTYPE,
            attnhub.Paged(page_size=PAGE),
            variant=attnhub.Variant(causal=True),
            device=self.device,
            backend=backend,
            **options,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Logits; those of a replay, which the next one overwrites, as a copy."""
        if len(batch.tokens) != len(QUESTIONS):
            return super().forward(batch)
        self.attention = self._decode
        self.attention.plan(batch.qo_indptr, batch.table)
        if self._graph is None:
            self._capture(batch)
        assert self._graph is not None
        self._fill(batch)
        self._graph.replay()
        self.replays += 1
        return self._logits.clone()

    def _capture(self, batch: Batch) -> None:
        def here(x: Tensor) -> Tensor:
            return x.to(self.device)

        table = batch.table
        self._pages = torch.zeros(PAGES, dtype=torch.int32, device=self.device)
        assert table.last_page_len is not None
        self._inputs = Batch(
            here(batch.tokens),
            here(batch.qo_indptr),
            here(batch.seq_lens),
            PagedKV(here(table.indptr), self._pages, here(table.last_page_len)),
        )
        self._fill(batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.compute(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self.compute(self._inputs)

    def _fill(self, batch: Batch) -> None:
        ours, table = self._inputs, batch.table
        ours.tokens.copy_(batch.tokens)
        ours.seq_lens.copy_(batch.seq_lens)
        ours.table.indptr.copy_(table.indptr)
        self._pages[: len(table.indices)].copy_(table.indices)
        assert table.last_page_len is not None
        assert ours.table.last_page_len is not None
        ours.table.last_page_len.copy_(table.last_page_len)


@pytest.mark.gpu(sm=80)
def test_tokens_of_a_cuda_graph_are_those_of_the_reference(
    plain: PlainModel, tokenizer: Tokenizer
) -> None:
    def answers(model: Model) -> list[list[int]]:
        engine = Engine(model)
        requests = [
            engine.submit(Request(prompt=tokenizer.chat(text), max_new_tokens=NEW_TOKENS))
            for text in QUESTIONS
        ]
        while engine.queue:
            engine.step()
        return [request.answer for request in requests]

    facts = {"num_pages": PAGES, "page_size": PAGE, "device": "cuda:0", "dtype": DTYPE}
    weights = plain.config, plain.weights
    ours = GraphModel(*weights, backend="fa2_cuda", **facts)
    found = answers(ours)
    assert ours.replays == NEW_TOKENS - 1
    chosen = ours.attention.explain().chosen
    assert chosen is not None
    assert chosen.name == "fa2_cuda"
    with attnhub.use("reference"):
        wanted = answers(Model(*weights, **facts))
    assert found == wanted
    assert tokenizer.decode(found[0]).startswith("The capital of France is Paris.")
