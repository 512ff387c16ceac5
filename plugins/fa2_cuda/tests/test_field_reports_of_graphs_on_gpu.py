"""Faults that users reported of CUDA graphs and compiled code, on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.attn import GraphLimits, PagedKV, RaggedKV
from attnhub.plugin import Variant
from attnhub.quantization import segment_packbits
from attnhub.testing.generators import (
    indptr,
    lengths,
    poison_,
    seeded,
)
from plugins.fa2_cuda.tests.reported import CAUSAL, Result, close, equal, unseen
from plugins.fa2_cuda.tests.reported_on_gpu import DEVICE, Batch

pytestmark = pytest.mark.gpu(sm=80)


# --- CUDA graphs ----------------------------------------------------------------------------------


class Replay:
    """A CUDA graph of one run, replayed for batches that are copied into its buffers.

    It has room for the largest of ``batches`` and some rows and requests more.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        *,
        variant: Variant = CAUSAL,
        deterministic: bool = False,
        **limits: Any,
    ) -> None:
        room = {
            "max_batch": max(len(b.qo_lens) for b in batches) + 2,
            "max_qo_tokens": max(len(b.q) for b in batches) + 3,
            "max_pages": max(b.pages for b in batches),
        }
        graph = GraphLimits(**room | limits)
        self.attn = batches[0].attention(variant, graph=graph, deterministic=deterministic)
        q, slots = batches[0].q, max(len(b.kv[0]) for b in batches)
        self.q = q.new_empty(graph.max_qo_tokens, *q.shape[1:])
        self.kv = tuple(x.new_empty(slots, *x.shape[1:]) for x in batches[0].kv)
        self.out = torch.empty_like(self.q)
        self.lse: Tensor | None = None
        self.graph = torch.cuda.CUDAGraph()

    def run(self, batch: Batch, **plan: Any) -> Result:
        """Plan a batch and replay; the result with the rows past the batch."""
        for buffer, x in zip((self.q, *self.kv), (batch.q, *batch.kv), strict=True):
            poison_(buffer)[: len(x)] = x
        self.attn.plan(batch.qo_indptr, batch.metadata, **plan)
        poison_(self.out)
        if self.lse is None:
            with torch.cuda.graph(self.graph):
                _, self.lse = self.attn.run(self.q, self.kv, out=self.out, return_lse=True)
        self.lse.fill_(math.nan)
        self.graph.replay()
        return self.out.clone(), self.lse.clone()

    def check(self, batch: Batch, expected: Result, **plan: Any) -> None:
        """Rows of the batch, and zeros after them."""
        got, live = self.run(batch, **plan), len(batch.q)
        close((got[0][:live], got[1][:live]), expected)
        unseen(got, slice(live, None))


@pytest.mark.parametrize("heads", [(8, 2), (32, 2)], ids=str)
def test_several_tokens_a_request_in_graph_mode(heads: tuple[int, int]) -> None:
    """Four queries for each of three requests, replayed with other lengths of keys."""
    steps = [(9, 4, 300), (4000, 41, 5), (70, 71, 72), (4, 5, 6)]
    batches = [Batch([(4, m) for m in kv], heads=heads, seed=i) for i, kv in enumerate(steps)]
    replay = Replay(batches, max_qo_len=4)
    for batch in batches:
        replay.check(batch, batch.expect())


@pytest.mark.parametrize("page", [0, 16])
def test_prompts_in_graph_mode(page: int) -> None:
    """Ragged and paged, shorter, longer and mixed with single queries."""
    steps = [[(70, 70)], [(1, 2000), (600, 900), (1, 0)], [(1, 5)], [(1500, 1500), (40, 3000)]]
    batches = [Batch(sizes, page=page, seed=i) for i, sizes in enumerate(steps)]
    replay = Replay(batches)
    for batch in batches:
        replay.check(batch, batch.expect())


def test_more_tiles_in_graph_mode_than_a_grid_has_rows() -> None:
    """65 536 tiles and more, which a grid of one CTA a tile may not have in y or z."""
    batch = Batch([(1_060_000, 3)], heads=(8, 1), dim=16, page=0)
    assert batch.q.shape[0] * 8 > 65_536 * 128
    Replay([batch], variant=Variant()).check(batch, batch.expect((-1, -1)))


@pytest.mark.parametrize("padded", ["by us", "by the caller"])
@pytest.mark.parametrize("max_qo_len", [1, None])
def test_padded_rows_of_a_graph_hold_zeros(padded: str, max_qo_len: int | None) -> None:
    """Room for eight requests of which three are live; the others have no keys."""
    rest = [(1, 0)] * 5 if padded == "by the caller" else []
    batches = [Batch([*[(1, m) for m in kv], *rest]) for kv in ((40, 7, 3000), (1, 900, 16))]
    replay = Replay(batches, max_batch=8, max_qo_tokens=8, max_qo_len=max_qo_len)
    for batch in batches:
        replay.check(batch, batch.expect())
        unseen((replay.out, replay.lse), slice(3, None))


@pytest.mark.parametrize("page", [0, 16])
def test_declared_maxima_change_no_bit(page: int) -> None:
    """Eager or in a graph, whatever it has room for, wherever the lengths lie."""
    batch = Batch([(1, 9000), (300, 700), (1, 30), (5, 2500)], page=page)
    first = batch.planned()
    close(first, batch.expect())
    qo_indptr = batch.qo_indptr.to(DEVICE)
    metadata: Any = RaggedKV(batch.metadata.indptr.to(DEVICE))
    if page:
        names = ("indptr", "indices", "last_page_len")
        metadata = PagedKV(*(getattr(batch.metadata, name).to(DEVICE) for name in names))
    for bounds in ({}, {"max_qo_len": 300, "max_kv_len": 9000}, {"max_qo_len": 1 << 14}):
        attn = batch.attention(deterministic=True)
        attn.plan(qo_indptr, metadata, **bounds)
        equal(batch.run(attn), first)
        out, lse = Replay([batch], deterministic=True, **bounds).run(batch)
        equal((out[:-3], lse[:-3]), first)


def tree(generator: torch.Generator, n: int, kv_len: int) -> Tensor:
    """What each of n drafted tokens sees: the history, its ancestors and itself."""
    mask = torch.ones(n, kv_len, dtype=torch.bool)
    mask[:, kv_len - n :] = torch.eye(n, dtype=torch.bool)
    for i in range(1, n):
        parent = int(torch.randint(-1, i, (), generator=generator))
        if parent >= 0:
            mask[i, kv_len - n :] |= mask[parent, kv_len - n :]
    return mask


@pytest.mark.parametrize("heads", [(4, 2), (32, 8)], ids=str)
def test_trees_of_drafts_in_graph_mode(heads: tuple[int, int]) -> None:
    """Eight drafted tokens a request, another tree and other lengths at each replay."""
    steps = []
    for seed, size in enumerate((3, 16, 1, 9)):
        generator = seeded(seed)
        kv_lens = lengths(size, 8, 2500, generator=generator)
        each = [tree(generator, 8, m) for m in kv_lens]
        flat = torch.cat([m.flatten() for m in each])
        packed, _ = segment_packbits(flat, indptr([m.numel() for m in each]))
        steps.append((Batch([(8, m) for m in kv_lens], heads=heads, seed=seed), each, packed))
    most = max(packed.numel() for _, _, packed in steps)
    batches = [batch for batch, _, _ in steps]
    replay = Replay(batches, variant=Variant(), max_qo_len=8, max_mask_bytes=most)
    for batch, each, packed in steps:
        replay.check(batch, batch.expect(seen=each), mask=packed)


# --- torch.compile --------------------------------------------------------------------------------


def test_compiled_whole_and_captured() -> None:
    """A step of decoding, compiled without a break and replayed with other lengths."""
    batches = [Batch([(1, m), (1, m + 900)], page=0, seed=m) for m in (500, 3, 60)]
    limits = GraphLimits(max_batch=2, max_qo_tokens=2, max_qo_len=1)
    attn = batches[0].attention(graph=limits)
    q = torch.empty_like(batches[0].q)
    kv = tuple(torch.empty_like(x) for x in batches[0].kv)

    @torch.compile(fullgraph=True, backend="eager")
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, lse = attn.run(q * 1, (k, v), return_lse=True)
        return out + 0, lse

    torch._dynamo.reset()
    graph, captured = torch.cuda.CUDAGraph(), None
    with torch.no_grad():
        for batch in batches:
            for buffer, x in zip((q, *kv), (batch.q, *batch.kv), strict=True):
                poison_(buffer)[: len(x)] = x
            attn.plan(batch.qo_indptr, batch.metadata)
            close(layer(q, *kv), batch.expect())
            if captured is None:
                with torch.cuda.graph(graph):
                    captured = layer(q, *kv)
            for x in captured:
                x.fill_(math.nan)
            graph.replay()
            close(captured, batch.expect())
