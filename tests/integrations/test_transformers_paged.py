"""`"paged|attnhub"`: continuous batching of small models, against eager generation one by one."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnhub.attn import BatchAttention
from attnhub.errors import InvalidArgument

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from transformers.generation.continuous_batching.cache import PagedAttentionCache

from attnhub.integrations.transformers import register
from attnhub.integrations.transformers.paged import page_table, paged_attention
from tests.integrations.conftest import GenerateBatch
from tests.integrations.tiny import build, ids

PROMPTS = [ids(length)[:length].tolist() for length in (11, 3, 9)]
NEW = 10


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    register()


def one_by_one(name: str, **config: Any) -> list[list[int]]:
    model = build(name, "eager", **config)
    return [
        model.generate(torch.tensor([p]), max_new_tokens=NEW, do_sample=False)[0, len(p) :].tolist()
        for p in PROMPTS
    ]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"block_size": 16, "max_batch_tokens": 64}, id="whole prompts"),
        pytest.param({"block_size": 4, "max_batch_tokens": 6}, id="prompts cut in chunks"),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama", id="llama: pages only"),
        pytest.param("mistral", id="mistral: rings only"),
        pytest.param("gemma2", id="gemma2: pages and rings, soft cap"),
        pytest.param("gpt_oss", id="gpt_oss: pages and rings, sinks"),
        pytest.param("qwen2_moe", id="qwen2_moe: rings that its module keeps quiet of"),
    ],
)
def test_equals_generation_one_by_one(
    name: str, config: dict[str, int], generate_batch: GenerateBatch
) -> None:
    model = build(name, "paged|attnhub")
    got = generate_batch(model, PROMPTS, new_tokens=NEW, num_blocks=32, **config)
    assert got == one_by_one(name)


def test_memory_that_no_request_owns_does_not_leak(
    generate_batch: GenerateBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = PagedAttentionCache.__init__

    def create_poisoned(cache: PagedAttentionCache, *args: Any, **kwargs: Any) -> None:
        create(cache, *args, **kwargs)
        for pool in (*cache.key_cache, *cache.value_cache):
            pool.fill_(math.nan)

    monkeypatch.setattr(PagedAttentionCache, "__init__", create_poisoned)
    model = build("gemma2", "paged|attnhub")
    config = {"block_size": 4, "max_batch_tokens": 6, "num_blocks": 32}
    assert generate_batch(model, PROMPTS, new_tokens=NEW, **config) == one_by_one("gemma2")


def test_pages_are_read_in_place_and_planned_once_a_step(
    generate_batch: GenerateBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("llama", "paged|attnhub", num_hidden_layers=3)
    calls: Counter[str] = Counter()

    def counted(owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def count(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, count)

    counted(type(model), "forward", "steps")
    counted(BatchAttention, "plan", "plans")
    counted(BatchAttention, "run", "runs")
    counted(PagedAttentionCache, "update", "gathers")
    config = {"block_size": 16, "max_batch_tokens": 64, "num_blocks": 32}
    generate_batch(model, PROMPTS, new_tokens=NEW, **config)
    assert calls["steps"] >= NEW
    assert calls["plans"] == calls["steps"]
    assert calls["runs"] == 3 * calls["steps"]
    assert calls["gathers"] == 3  # the first step: whole prompts, with no page to read


@pytest.mark.parametrize(
    ("pages", "lengths"),
    [
        pytest.param([[3, 1], [0]], [7, 2], id="the last page in part"),
        pytest.param([[2], [5, 4]], [4, 8], id="the last page in full"),
        pytest.param([[], [6], []], [0, 1, 0], id="empty requests at both ends"),
    ],
)
def test_page_table(pages: list[list[int]], lengths: list[int]) -> None:
    slots = [
        page * 4 + slot
        for owned, length in zip(pages, lengths, strict=True)
        for page, slot in [(owned[i // 4], i % 4) for i in range(length)]
    ]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    table = page_table(torch.tensor(slots), starts, 4)
    flat = [page for owned in pages for page in owned]
    assert table.indptr.diff().tolist() == [len(owned) for owned in pages]
    assert table.indices[: len(flat)].tolist() == flat
    assert set(table.indices[len(flat) :].tolist()) <= set(flat)  # spare, but in the cache
    last = [length - 4 * max(len(o) - 1, 0) for o, length in zip(pages, lengths, strict=True)]
    assert table.last_page_len.tolist() == last
    assert {x.dtype for x in (table.indptr, table.indices, table.last_page_len)} == {torch.int32}


def test_forward_without_continuous_batching_is_refused() -> None:
    model = build("llama", "paged|attnhub")
    with torch.no_grad(), pytest.raises(InvalidArgument, match=r"cache, cu_seq_lens_q.* not given"):
        model(ids(1, 13), attention_mask=torch.ones(1, 13))


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        pytest.param("is_causal", False, "is_causal is False", id="not causal"),
        pytest.param("block_table", torch.zeros(1, 1), "block_table is a tensor", id="block table"),
        pytest.param("attention_mask", torch.ones(1, 1), "attention_mask is a tensor", id="mask"),
        pytest.param("dropout", 0.1, "dropout is 0.1", id="dropout"),
    ],
)
def test_arguments_that_are_not_served_are_refused(
    keyword: str, value: object, message: str
) -> None:
    lengths = torch.tensor([0, 3], dtype=torch.int32)
    step = {
        "cache": SimpleNamespace(),
        "cu_seq_lens_q": lengths,
        "cu_seq_lens_k": lengths,
        "max_seqlen_q": 3,
        "max_seqlen_k": 3,
        "read_index": [],
        "write_index": [],
    }
    heads = torch.zeros(1, 4, 3, 16)
    arguments = {"attention_mask": None, **step, keyword: value}
    with pytest.raises(InvalidArgument, match=message):
        paged_attention(torch.nn.Module(), heads, heads, heads, **arguments)
