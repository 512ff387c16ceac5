"""Plans: what they cost, who shares one, and what a refilled one must not keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnhub
from attnhub import (
    BatchAttention,
    BatchMLA,
    GraphLimits,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Variant,
)
from attnhub.quantization import segment_packbits
from attnhub.testing.compare import assert_close

CAUSAL = Variant(causal=True)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class CountOps(TorchDispatchMode):
    """Counts the tensor operations that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _paged(batch: int, backend: str = "reference") -> Callable[[], None]:
    attn = BatchAttention(
        8, 2, 64, torch.bfloat16, Paged(16), variant=CAUSAL, device="cpu", backend=backend
    )
    ids = torch.arange(batch + 1, dtype=torch.int32)
    table = PagedKV(3 * ids, torch.arange(3 * batch, dtype=torch.int32), ids[1:] % 16 + 1)
    return lambda: attn.plan(ids, table)


def _ragged(batch: int) -> Callable[[], None]:
    attn = BatchAttention(8, 2, 64, torch.bfloat16, Ragged(), variant=CAUSAL, device="cpu")
    ids = torch.arange(batch + 1, dtype=torch.int32)
    return lambda: attn.plan(2 * ids, RaggedKV(5 * ids))


def _latent(batch: int) -> Callable[[], None]:
    mla = BatchMLA(16, torch.bfloat16, page_size=16, scale=0.1, device="cpu")
    ids = torch.arange(batch + 1, dtype=torch.int32)
    table = PagedKV(ids, ids[1:] - 1, ids[1:] % 16 + 1)
    return lambda: mla.plan(ids, table)


PLANS = {
    "paged": _paged,
    "paged, torch_sdpa": lambda batch: _paged(batch, "torch_sdpa"),
    "ragged": _ragged,
    "latent": _latent,
}


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_planning_a_large_batch_takes_no_more_tensor_operations(
    make: Callable[[int], Callable[[], None]],
) -> None:
    """One tensor operation a request, such as Python's max() of a tensor, made plans slow.

    Few requests are looked at as lists, and many by operations on all of them.
    """
    counts = []
    for batch in (4, 64, 256, 2048):
        plan = make(batch)
        with CountOps() as ops:
            plan()
        counts.append(ops.counts)
    few, more, many, most = counts
    assert few == more
    assert few.total() < 40
    assert not [name for name in few if "_local_scalar_dense" in name and few[name] > 2]
    assert many == most
    assert many.total() < 80


def test_a_step_of_decoding_is_one_call_and_a_prompt_one_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same object and call serve both: nobody has to pick the wrapper that is fast."""
    calls: list[torch.Size] = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def spy(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(q.shape)
        return sdpa(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    attn = BatchAttention(
        4, 2, 8, torch.float32, Paged(4), variant=CAUSAL, device="cpu", backend="torch_sdpa"
    )
    table = PagedKV(i32(0, 2, 3, 5), i32(4, 1, 0, 2, 3), i32(2, 4, 1))
    cache = normal(5, 2, 4, 2, 8, seed=0)
    attn.plan(i32(0, 1, 2, 3), table)
    decoded = attn.run(normal(3, 4, 8, seed=1), cache)
    assert calls == [(3, 2, 2, 8)]  # the batch at once, each GQA group as query rows
    attn.plan(i32(0, 1, 2, 4), table)
    assert attn.run(normal(4, 4, 8, seed=1), cache).shape == (4, 4, 8)
    assert len(calls) == 4
    one = attnhub.attention(
        normal(3, 4, 8, seed=1)[1:2], *(cache[0, i] for i in (0, 1)), causal=True
    )
    assert_close(decoded[1:2], one, dtype=torch.float32)


def test_equal_facts_share_one_decision_and_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer of a model runs on one plan; the next step refills it."""
    from attnhub.backends.reference import attn as served

    made: list[Any] = []
    planner = type(served.attention)
    original = planner.plan

    def spy(self: Any, problem: Any) -> Any:
        made.append(problem)
        return original(self, problem)

    monkeypatch.setattr(planner, "plan", spy)
    attn = BatchAttention(4, 2, 8, torch.float32, device="cpu", backend="reference")
    q, caches = normal(4, 4, 8, seed=0), [normal(7, 2, 8, seed=s) for s in (1, 2, 3)]
    decisions = []
    for kv_lens in ((3, 7), (4, 7), (2, 6)):  # the same buckets: longest 4, 7 in all
        attn.plan(i32(0, 2, 4), RaggedKV(i32(0, *kv_lens)))
        decisions.append(attn.explain())
        for kv in caches:
            first = attnhub.attention(q[:2], kv[: kv_lens[0]], kv[: kv_lens[0]])
            assert_close(attn.run(q, (kv, kv))[:2], first, dtype=torch.float32)
    assert len([p for p in made if p.kv == "ragged"]) == 1
    assert all(d is decisions[0] for d in decisions)


def test_layers_that_differ_in_their_window_have_their_own_plans() -> None:
    """Same group, same caches, another window: neither takes the other's."""
    q, k, v = (normal(n, h, 8, seed=s) for n, h, s in ((6, 4, 0), (9, 2, 1), (9, 2, 2)))
    wanted = {}
    layers = {}
    for window in ((2, 0), (5, 0), None):
        variant = Variant(causal=True, window=window)
        layers[window] = BatchAttention(4, 2, 8, torch.float32, variant=variant, device="cpu")
        layers[window].plan(i32(0, 6), RaggedKV(i32(0, 9)))
        with attnhub.use("reference"):
            wanted[window] = attnhub.attention(q, k, v, variant=variant)
    for window, layer in layers.items():
        assert_close(layer.run(q, (k, v)), wanted[window], dtype=torch.float32)
        again = attnhub.attention(q, k, v, variant=Variant(causal=True, window=window))
        assert_close(again, wanted[window], dtype=torch.float32)
    assert not torch.allclose(wanted[2, 0], wanted[5, 0])


def _tree(parents: list[int], kv_len: int) -> torch.Tensor:
    """What each drafted token sees: the history, its ancestors and itself."""
    n = len(parents)
    mask = torch.ones(n, kv_len, dtype=torch.bool)
    mask[:, kv_len - n :] = torch.eye(n, dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i, kv_len - n :] |= mask[parent, kv_len - n :]
    return mask


def test_drafts_of_a_tree_in_graph_mode_follow_each_refill() -> None:
    """Eight drafted tokens a request, another tree and other lengths at each replay."""
    limits = GraphLimits(max_batch=3, max_qo_tokens=24, max_pages=12, max_mask_bytes=64)
    graph = BatchAttention(4, 2, 8, torch.float32, Paged(4), device="cpu", graph=limits)
    plain = BatchAttention(4, 2, 8, torch.float32, Paged(4), device="cpu")
    cache, q = normal(12, 2, 4, 2, 8, seed=0), normal(24, 4, 8, seed=1)
    steps = [
        ([[-1, 0, 0, 1, 1, 2, 2, 3], [-1, 0, 1, 2, 3, 4, 5, 6]], (11, 14)),
        ([[-1, 0, 1, 1, 0, 4, 4, 5]], (9,)),
        ([[-1, -1, 0, 1, 2, 3, 4, 5]] * 3, (8, 12, 10)),
    ]
    for trees, kv_lens in steps:
        pages = [-(-n // 4) for n in kv_lens]
        starts = [sum(pages[:i]) for i in range(len(pages) + 1)]
        table = PagedKV(
            i32(*starts),
            i32(*reversed(range(sum(pages)))),
            i32(*((n - 1) % 4 + 1 for n in kv_lens)),
        )
        qo = i32(*range(0, 8 * len(trees) + 1, 8))
        masks = [_tree(parents, n) for parents, n in zip(trees, kv_lens, strict=True)]
        flat = torch.cat([m.flatten() for m in masks])
        sizes = [8 * n for n in kv_lens]
        bits = i32(*(sum(sizes[:i]) for i in range(len(sizes) + 1)))
        graph.plan(qo, table, mask=segment_packbits(flat, bits)[0])
        plain.plan(qo, table, mask=masks)
        out = graph.run(q, cache, out=torch.full((24, 4, 8), float("nan")))
        live = 8 * len(trees)
        assert_close(out[:live], plain.run(q[:live], cache), dtype=torch.float32)
        assert (out[live:] == 0).all()


def test_several_tokens_a_request_with_other_lengths_at_each_refill() -> None:
    limits = GraphLimits(max_batch=3, max_qo_tokens=12, max_pages=9)
    graph = BatchAttention(
        4, 2, 8, torch.float32, Paged(4), variant=CAUSAL, device="cpu", graph=limits
    )
    cache, q = normal(9, 2, 4, 2, 8, seed=0), normal(12, 4, 8, seed=1)
    flat_k, flat_v = (cache[:, i].reshape(36, 2, 8) for i in (0, 1))
    for last in (1, 3, 4):
        graph.plan(i32(0, 4, 8, 12), PagedKV(i32(0, 3, 6, 9), i32(*range(9)), i32(last, 4, last)))
        out = graph.run(q, cache)
        for b, tokens in enumerate((8 + last, 12, 8 + last)):
            keys = slice(12 * b, 12 * b + tokens)
            one = attnhub.attention(q[4 * b : 4 * b + 4], flat_k[keys], flat_v[keys], causal=True)
            assert_close(out[4 * b : 4 * b + 4], one, dtype=torch.float32)
