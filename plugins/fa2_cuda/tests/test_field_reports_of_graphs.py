"""Faults that users reported of CUDA graphs and compiled code, in the kernel emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.attn import GraphLimits
from attnhub.plugin import Registry, Variant
from attnhub.quantization import segment_packbits
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import (
    indptr,
)
from attnhub_fa2_cuda import manifest
from plugins.fa2_cuda.tests.reported import (
    CAUSAL,
    Batch,
    Lengths,
    close,
    equal,
    unseen,
)


@pytest.fixture(autouse=True)
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    """The backends of the manifest, for the emulator."""
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    return emulated_gpu


# --- CUDA graphs ----------------------------------------------------------------------------------


def follow(
    batches: Sequence[Batch],
    plans: Sequence[dict[str, Any]] | None = None,
    variant: Variant = CAUSAL,
    **limits: Any,
) -> None:
    """Plan batches one after another in graph mode, where rows past a batch hold zeros."""
    most = {name: max(b.limits[name] for b in batches) for name in batches[0].limits}
    attn = batches[0].attention(variant=variant, graph=GraphLimits(**most | limits))
    for batch, plan in zip(batches, plans or [{}] * len(batches), strict=True):
        attn.plan(batch.qo_indptr, batch.metadata, **plan)
        out, lse = batch.run(attn, spare=3)
        live = len(batch.q)
        close((out[:live], lse[:live]), batch.expect(variant, **plan))
        unseen((out, lse), slice(live, None))


def test_several_tokens_a_request_in_graph_mode(gpu: EmulatedGpu) -> None:
    """Four queries for each of three requests, replayed with other lengths of keys."""
    gpu.num_sms = 4
    steps = [Batch([(4, m) for m in kv], seed=i) for i, kv in enumerate([(9, 4, 300), (40, 41, 5)])]
    follow(steps, max_qo_len=4)
    assert gpu.launches[-1][0] == "fa2_decode_bfloat16_d128"


@pytest.mark.parametrize("page", [0, 16])
def test_prompts_in_graph_mode(page: int) -> None:
    """Ragged and paged, shorter, longer and mixed with single queries, on one plan."""
    lengths = [[(70, 70)], [(1, 130), (33, 200), (1, 0)], [(1, 5)], []]
    follow([Batch(each, heads=(4, 2), page=page, seed=i) for i, each in enumerate(lengths)])


@pytest.mark.parametrize("padded", ["by us", "by the caller"])
def test_padded_rows_of_a_graph_hold_zeros(padded: str) -> None:
    """Room for eight requests of which three are live; the others have no keys."""
    live = [(1, 40), (1, 7), (1, 130)]
    batch = Batch(live + [(1, 0)] * 5 if padded == "by the caller" else live)
    limits = GraphLimits(max_batch=8, max_qo_tokens=8, max_pages=20, max_qo_len=1)
    attn = batch.attention(graph=limits)
    attn.plan(batch.qo_indptr, batch.metadata)
    out, lse = batch.run(attn, spare=8 - len(batch.q))
    unseen((out, lse), slice(3, None))
    expected = batch.expect()
    close((out[:3], lse[:3]), (expected[0][:3], expected[1][:3]))


@pytest.mark.parametrize(
    ("page", "sizes"),
    [
        (0, [(1, 2100), (40, 90)]),
        (0, [(1, 2100), (1, 90)]),
        (16, [(1, 2100), (40, 90)]),
        (16, [(1, 2100), (1, 90)]),
    ],
    ids=str,
)
def test_declared_maxima_change_no_bit(page: int, sizes: Lengths) -> None:
    """Eager or in a graph, whatever it has room for."""
    batch = Batch(sizes, heads=(4, 2), page=page)
    found = []
    for bounds in ({}, {"max_qo_len": 40, "max_kv_len": 4096}, {"max_qo_len": 1 << 12}):
        eager = batch.attention(deterministic=True)
        eager.plan(batch.qo_indptr, batch.metadata, **bounds)
        limits = GraphLimits(**batch.limits | bounds)
        graph = batch.attention(deterministic=True, graph=limits)
        graph.plan(batch.qo_indptr, batch.metadata)
        found += [batch.run(eager), batch.run(graph)]
    close(found[0], batch.expect())
    for again in found[1:]:
        equal(again, found[0])


def tree(parents: Sequence[int], kv_len: int) -> Tensor:
    """What each drafted token sees: the history, its ancestors and itself."""
    n = len(parents)
    mask = torch.ones(n, kv_len, dtype=torch.bool)
    mask[:, kv_len - n :] = torch.eye(n, dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i, kv_len - n :] |= mask[parent, kv_len - n :]
    return mask


def test_trees_of_drafts_in_graph_mode(gpu: EmulatedGpu) -> None:
    """Eight drafted tokens a request, another tree and other lengths at each replay."""
    steps = [
        ([[-1, 0, 0, 1, 1, 2, 2, 3], [-1, 0, 1, 2, 3, 4, 5, 6]], (11, 300)),
        ([[-1, 0, 1, 1, 0, 4, 4, 5]], (9,)),
        ([[-1, -1, 0, 1, 2, 3, 4, 5]] * 3, (8, 65, 10)),
    ]
    batches, plans = [], []
    for i, (trees, kv_lens) in enumerate(steps):
        each = [tree(parents, n) for parents, n in zip(trees, kv_lens, strict=True)]
        bits = indptr([m.numel() for m in each])
        packed, _ = segment_packbits(torch.cat([m.flatten() for m in each]), bits)
        batches.append(Batch([(8, n) for n in kv_lens], heads=(4, 2), seed=i))
        plans.append({"mask": packed})
    follow(batches, plans, Variant(), max_qo_len=8, max_mask_bytes=400)
    assert gpu.launches[-1][0] == "fa2_decode_bfloat16_d128_packed_mask"


# --- torch.compile --------------------------------------------------------------------------------


@pytest.fixture
def compiled() -> Iterator[tuple[Callable[[Any], Any], list[Any]]]:
    """A decorator that compiles a function whole, and the graphs that were made."""
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        yield torch.compile(fullgraph=True, backend=keep), graphs


def test_compiled_whole_and_planned_anew(
    compiled: tuple[Callable[[Any], Any], list[Any]],
) -> None:
    """No break of the graph, and no compilation for another batch of as many rows."""
    compile_whole, graphs = compiled
    batches = [Batch([(1, m), (3, m + 9)], seed=m) for m in (5, 70)]
    size = max(len(b.kv) for b in batches)
    for b in batches:
        b.kv = torch.cat([b.kv, b.kv.new_zeros(size - len(b.kv), *b.kv.shape[1:])])
    attn = batches[0].attention()

    @compile_whole
    def layer(q: Tensor, kv: Tensor) -> Any:
        out, lse = attn.run(q * 1, kv, return_lse=True)
        return out + 0, lse

    for b in batches:
        attn.plan(b.qo_indptr, b.metadata)
        close(layer(b.q, b.kv), b.expect())
    assert len(graphs) == 1
