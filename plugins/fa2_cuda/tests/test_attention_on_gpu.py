"""What only a GPU can show of the attention kernel; the conformance suite runs there too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.attn import GraphLimits, PagedKV
from attnhub.plugin import Variant
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import indptr, lengths, page_table, paged_cache, seeded
from attnhub.testing.waiting import no_waiting

pytestmark = pytest.mark.gpu(sm=80)
DEVICE = torch.device("cuda:0")
HEADS, KV_HEADS, DIM = 8, 2, 128
CAUSAL = Variant(causal=True)
BANDS = (
    CAUSAL,
    Variant(),
    Variant(window=(63, 0)),
    Variant(window=(64, 64)),
    Variant(window=(0, 0)),
    Variant(window=(-1, 65)),
    Variant(causal=True, window=(300, 7)),
)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed, DEVICE), device=DEVICE).bfloat16()


def in_float64(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention of one request, aligned at its end, and its LSE."""
    n, m = q.shape[0], k.shape[0]
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / math.sqrt(DIM)
    seen = torch.arange(m, device=DEVICE) <= torch.arange(n, device=DEVICE)[:, None] + m - n
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    probs = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", probs, v), lse.T


class Batch:
    """Random requests in a paged cache whose free memory holds NaN."""

    def __init__(
        self,
        qo_lens: list[int],
        kv_lens: list[int],
        page: int,
        seed: int,
        *,
        heads: int = HEADS,
        dim: int = DIM,
    ) -> None:
        self.qo_lens, self.kv_lens = qo_lens, kv_lens
        self.q = random(sum(qo_lens), heads, dim, seed=seed)
        self.k = random(sum(kv_lens), KV_HEADS, dim, seed=seed + 1)
        self.v = random(sum(kv_lens), KV_HEADS, dim, seed=seed + 2)
        table = page_table(kv_lens, page, generator=seeded(seed))
        self.cache = paged_cache(self.k, self.v, kv_lens, table)
        self.qo_indptr = indptr(qo_lens).to(DEVICE)
        self.kv = PagedKV(
            *(x.to(DEVICE) for x in (table.indptr, table.indices, table.last_page_len))
        )

    def expect(self) -> tuple[Tensor, Tensor]:
        """In float64, request by request."""
        parts = zip(
            self.q.split(self.qo_lens),
            self.k.split(self.kv_lens),
            self.v.split(self.kv_lens),
            strict=True,
        )
        out, lse = zip(*(in_float64(*part) for part in parts), strict=True)
        return torch.cat(out), torch.cat(lse)

    def expect_at_once(self, band: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """In float64, short requests padded to the longest; of any window."""
        size = len(self.qo_lens)
        at, kv_at = padding(self.qo_lens), padding(self.kv_lens)
        q = padded(self.q, at, (size, max(self.qo_lens))).unflatten(2, (KV_HEADS, -1))
        k, v = (padded(x, kv_at, (size, max(self.kv_lens))) for x in (self.k, self.v))
        scores = torch.einsum("bnhgd,bmhd->bnhgm", q, k) / math.sqrt(q.shape[-1])
        n, m = (torch.tensor(x, device=DEVICE)[:, None, None] for x in (self.qo_lens, self.kv_lens))
        key = torch.arange(k.shape[1], device=DEVICE)
        query = torch.arange(q.shape[1], device=DEVICE)[:, None] + m - n
        left, right = (2**30 if reach < 0 else reach for reach in band)
        seen = (key < m) & (key >= query - left) & (key <= query + right)
        scores = scores.masked_fill(~seen[:, :, None, None], -math.inf)
        lse = scores.logsumexp(-1)
        probs = (scores - lse[..., None]).exp().nan_to_num(0.0)
        out = torch.einsum("bnhgm,bmhd->bnhgd", probs, v)
        return out.flatten(2, 3)[at], lse.flatten(2, 3)[at]

    def plan(self, attn: attnhub.BatchAttention, *, on_host: bool) -> None:
        """With lengths on the host the tile is chosen by them."""
        qo_indptr, kv = self.qo_indptr, self.kv
        if on_host:
            qo_indptr = qo_indptr.cpu()
            kv = PagedKV(kv.indptr.cpu(), kv.indices, kv.last_page_len.cpu())
        attn.plan(qo_indptr, kv)

    def check_run(self, attn: attnhub.BatchAttention, band: tuple[int, int], what: str) -> None:
        """Into poisoned memory, all requests compared at once."""
        out = torch.full_like(self.q, torch.nan)
        _, lse = attn.run(self.q, self.cache, out=out, return_lse=True)
        expected, expected_lse = self.expect_at_once(band)
        assert_close(out, expected, dtype=torch.bfloat16, name=what)
        assert_close(lse, expected_lse, dtype=torch.bfloat16, kind="lse", name=f"{what}: LSE")

    def check(self, out: Tensor, lse: Tensor) -> None:
        expected, expected_lse = self.expect()
        assert_close(out, expected, dtype=torch.bfloat16)
        assert_close(lse, expected_lse, dtype=torch.bfloat16, kind="lse")


def padding(lens: list[int]) -> tuple[Tensor, Tensor]:
    """For each row of requests that lie end to end: whose it is, and its place there."""
    sizes = torch.tensor(lens)
    starts = indptr(lens)[:-1].long().repeat_interleave(sizes)
    owners = torch.arange(len(lens)).repeat_interleave(sizes)
    return owners.to(DEVICE), (torch.arange(sum(lens)) - starts).to(DEVICE)


def padded(x: Tensor, at: tuple[Tensor, Tensor], size: tuple[int, int]) -> Tensor:
    """Rows that lie end to end as ``[*size, ...]`` in float64, zeros behind each request's."""
    whole = torch.zeros(*size, *x.shape[1:], device=DEVICE, dtype=torch.float64)
    whole[at] = x.double()
    return whole


def attention(
    page: int,
    graph: GraphLimits | None = None,
    *,
    heads: int = HEADS,
    dim: int = DIM,
    variant: Variant = CAUSAL,
) -> attnhub.BatchAttention:
    return attnhub.BatchAttention(
        num_qo_heads=heads,
        num_kv_heads=KV_HEADS,
        head_dim=dim,
        dtype=torch.bfloat16,
        kv=attnhub.Paged(page),
        device=DEVICE,
        variant=variant,
        graph=graph,
        backend="fa2_cuda",
    )


@pytest.mark.parametrize("page", [1, 16, 37])
@pytest.mark.parametrize("seed", range(10))
def test_random_mixed_batches(page: int, seed: int) -> None:
    generator = seeded(seed)
    size = int(torch.randint(1, 60, (), generator=generator))
    longest = (1, 40, 700)[seed % 3]  # decode, append, prefill
    qo_lens = lengths(size, 0, longest, "with_empty", generator=generator)
    kv_lens = lengths(size, 0, 3000, "with_empty", generator=generator)
    batch = Batch(qo_lens, kv_lens, page, seed)
    attn = attention(page)
    for _ in range(2):  # the second run finds the counters as the first left them
        attn.plan(batch.qo_indptr, batch.kv)
        batch.check(*attn.run(batch.q, batch.cache, return_lse=True))
        batch.check(*attn.run(batch.q, batch.cache, return_lse=True))


@pytest.mark.parametrize("index", range(20))
def test_a_thousand_random_batches(index: int) -> None:
    """50 of each of 20 attentions; groups of 1 to 16 heads, often more queries than keys."""
    group, page, dim = 1 + index % 16, (1, 7, 16, 37, 64)[index % 5], (64, 128, 256)[index % 3]
    variant, heads = BANDS[index % 7], KV_HEADS * group
    attn = attention(page, heads=heads, dim=dim, variant=variant)
    for seed in range(50 * index, 50 * index + 50):
        generator = seeded(seed)
        size, most = (int(torch.randint(1, n, (), generator=generator)) for n in (25, 500))
        qo_lens = lengths(size, 0, (1, 24, 130)[seed % 3], "with_empty", generator=generator)
        qo_lens[::3] = [1] * len(qo_lens[::3])  # decode among the others
        kv_lens = lengths(size, 0, most, ("with_empty", "lognormal")[seed % 2], generator=generator)
        batch = Batch(qo_lens, kv_lens, page, seed, heads=heads, dim=dim)
        batch.plan(attn, on_host=seed % 4 < 2)
        batch.check_run(attn, variant.band, f"seed {seed}, {qo_lens} x {kv_lens}")


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("right", [0, 64])
@pytest.mark.parametrize("left", [0, 1, 63, 64, 65])
def test_windows_at_the_edges_of_tiles(left: int, right: int, group: int) -> None:
    variant, heads = Variant(window=(left, right)), KV_HEADS * group
    attn = attention(16, heads=heads, variant=variant)
    queries, keys = [1, 63, 64, 65], [0, 1, 63, 64, 65, 127, 128, 129, 300]
    for chosen in ([1], [63], [64], [65], queries):
        qo_lens = [n for n in chosen for _ in keys]
        batch = Batch(qo_lens, keys * len(chosen), 16, seed=left, heads=heads)
        batch.plan(attn, on_host=True)
        batch.check_run(attn, variant.band, f"{chosen} queries")


def test_nothing_waits() -> None:
    batch = Batch([1, 5, 0, 1], [900, 77, 3, 0], 16, seed=3)
    attn = attention(16)
    attn.plan(batch.qo_indptr, batch.kv)
    attn.run(batch.q, batch.cache)
    host = PagedKV(batch.kv.indptr.cpu(), batch.kv.indices, batch.kv.last_page_len.cpu())
    qo_indptr = batch.qo_indptr.cpu()
    with no_waiting():
        attn.plan(batch.qo_indptr, batch.kv)
        got = attn.run(batch.q, batch.cache, return_lse=True)
        attn.plan(qo_indptr, host)
        again = attn.run(batch.q, batch.cache, return_lse=True)
    batch.check(*got)
    batch.check(*again)


@pytest.mark.parametrize("longest", [1, 60])
def test_graph_replays_with_other_lengths(longest: int) -> None:
    limits = GraphLimits(
        max_batch=20, max_qo_tokens=20 * longest, max_pages=3000, max_qo_len=longest
    )
    attn = attention(16, limits)
    q = random(limits.max_qo_tokens, HEADS, DIM, seed=0)
    cache = random(limits.max_pages, 2, 16, KV_HEADS, DIM, seed=1)
    out, lse = torch.empty_like(q), None
    graph = torch.cuda.CUDAGraph()
    for seed in range(8):
        size = 1 + 19 * seed // 7
        generator = seeded(seed)
        qo_lens = lengths(size, 0, longest, generator=generator)
        kv_lens = lengths(size, 0, 2300, "with_empty", generator=generator)
        batch = Batch(qo_lens, kv_lens, 16, seed)
        attn.plan(batch.qo_indptr, batch.kv)
        rows = sum(qo_lens)
        q[:rows] = batch.q
        cache[: batch.cache.shape[0]] = batch.cache
        out.fill_(torch.nan)
        if lse is None:
            with torch.cuda.graph(graph):
                _, lse = attn.run(q, cache, out=out, return_lse=True)
        graph.replay()
        batch.check(out[:rows], lse[:rows])
        assert not out[rows:].any()
        assert (lse[rows:] == -math.inf).all()


def test_pages_whose_offsets_pass_2_to_the_31() -> None:
    page_elements = 16 * KV_HEADS * DIM
    last = 2**31 // page_elements + 3
    pages = torch.tensor([last, 0, last - 1], dtype=torch.int32)
    k, v = (torch.empty(last + 1, 16, KV_HEADS, DIM, device=DEVICE).bfloat16() for _ in "kv")
    for x in (k, v):
        x[pages.long()] = random(3, 16, KV_HEADS, DIM, seed=4)
    q = random(1, HEADS, DIM, seed=5)
    attn = attention(16)
    attn.plan(indptr([1]), PagedKV(indptr([3]), pages, torch.tensor([9], dtype=torch.int32)))
    got, lse = attn.run(q, (k, v), return_lse=True)
    rows = [x[pages.long()].flatten(0, 1)[:41] for x in (k, v)]
    expected, expected_lse = in_float64(q, *rows)
    assert_close(got, expected, dtype=torch.bfloat16)
    assert_close(lse, expected_lse, dtype=torch.bfloat16, kind="lse")


def test_on_a_stream_of_the_caller() -> None:
    batch = Batch([1] * 4, [500, 3, 80, 1200], 16, seed=6)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    attn = attention(16)
    with torch.cuda.stream(side):
        late = torch.empty_like(batch.q)
        torch.cuda._sleep(20_000_000)
        late.copy_(batch.q)
        attn.plan(batch.qo_indptr, batch.kv)
        got = attn.run(late, batch.cache, return_lse=True)
    side.synchronize()
    batch.check(*got)
