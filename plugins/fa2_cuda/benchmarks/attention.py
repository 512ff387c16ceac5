"""Attention: TFLOP/s of prefill, bandwidth of decode, latency of small batches.

Beside ours, in the same run: torch's varlen attention where keys are ragged and, if it is
installed, FlashInfer by its FlashAttention-2 and FlashAttention-3 kernels. All work on the same
tensors; a peer that cannot, or that disagrees with us, is left out and the reason printed.

Two clocks. "flushed": events round each call, behind a read that empties the L2. "in a graph": a
layer of a CUDA graph of many, each with a cache of its own, together beyond the L2; as a model runs
it, so launches overlap and decode is judged by it too.

    python plugins/fa2_cuda/benchmarks/attention.py [--device cuda:0] [--out benchmarks/results]
        [--commit HASH]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnhub import Variant
from attnhub.attn import BatchAttention, DTypes, GraphLimits, Paged, PagedKV, Ragged, RaggedKV
from attnhub.testing import results, script
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import PageTable, indptr, lengths, page_table, seeded
from attnhub.testing.timing import CLEAR_BYTES, Timing, compare_peers, copy_ceiling, matmul_ceiling

SUITE = "fa2-cuda-attention"
HEAD_DIM = 128
DTYPE = torch.bfloat16
MIN_LAYERS = 4

#: K and V: (K, V) of ragged rows, or one paged cache.
KV = Tensor | tuple[Tensor, Tensor]
Call = Callable[[KV], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Causal attention of requests with these numbers of queries and keys.

    ``page_size`` is 0 where keys are ragged. A batch that ``is_small`` is judged by its time.
    """

    name: str
    qo_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int] = (32, 8)
    page_size: int = 0
    kv_dtype: torch.dtype = DTYPE
    is_small: bool = False

    @property
    def num_prompts(self) -> int:
        """Requests of more than one query, which come first."""
        return sum(n > 1 for n in self.qo_lens)

    @property
    def is_mixed(self) -> bool:
        """Whether there are prompts and single queries."""
        return 0 < self.num_prompts < len(self.qo_lens)

    @property
    def is_decode(self) -> bool:
        """Whether each request has one query."""
        return self.num_prompts == 0

    @property
    def flops(self) -> float:
        """Of both products, where a causal prompt counts half."""
        pairs = sum(n * m - n * n / 2 for n, m in zip(self.qo_lens, self.kv_lens, strict=True))
        return 4 * pairs * self.heads[0] * HEAD_DIM

    @property
    def kv_bytes(self) -> int:
        """K and V of one layer."""
        return 2 * sum(self.kv_lens) * self.heads[1] * HEAD_DIM * self.kv_dtype.itemsize

    def num_layers(self, device: torch.device) -> int:
        """How many exceed the L2 together; one of a prompt, which is bound by its products."""
        if not self.is_decode:
            return 1
        clear = CLEAR_BYTES if device.type == "cuda" else 0
        return max(-(-clear // self.kv_bytes), MIN_LAYERS)

    def shrunk(self) -> Case:
        """The same facts, small enough for the reference: short, long and whole pages."""
        kv_lens = (5, 64, 333)
        qo_lens = (1, 1, 1) if self.is_decode else (33, 200, 1) if self.is_mixed else (5, 33, 200)
        return replace(self, name="check", qo_lens=qo_lens, kv_lens=kv_lens, is_small=False)

    def __str__(self) -> str:
        kind = "decode" if self.is_decode else "mixed" if self.is_mixed else "prefill"
        if self.kv_dtype != DTYPE:
            kind += " FP8"
        keys = f"page {self.page_size}" if self.page_size else "ragged"
        return f"{kind} {self.name} {self.heads[0]}/{self.heads[1]} {keys}"


def prompts(batch: int, length: int, page_size: int = 0) -> Case:
    """Whole prompts of one length."""
    each = (length,) * batch
    return Case(name=f"B{batch} L{length}", qo_lens=each, kv_lens=each, page_size=page_size)


def decode(batch: int, length: int, page_size: int = 16, **facts: Any) -> Case:
    """A query for each of ``batch`` requests with equally many keys."""
    return Case(
        name=f"B{batch} L{length}",
        qo_lens=(1,) * batch,
        kv_lens=(length,) * batch,
        page_size=page_size,
        **facts,
    )


def mixed_decode(batch: int, mean: int) -> Case:
    """Decode of requests as they are served: many short, few long."""
    kv_lens = lengths(
        batch, mean // 16, mean * 8, "lognormal", total=batch * mean, generator=seeded(0)
    )
    case = decode(batch, mean)
    return replace(case, name=f"B{batch} lognormal, mean {mean}", kv_lens=tuple(kv_lens))


def prompts_and_decode(prompts: int, decodes: int, length: int) -> Case:
    """As a server with chunked prefill sees it (POD-Attention, Kamath et al. 2024)."""
    return Case(
        name=f"{prompts} prompts and {decodes} queries, L{length}",
        qo_lens=(length,) * prompts + (1,) * decodes,
        kv_lens=(length,) * (prompts + decodes),
        page_size=16,
        is_small=True,
    )


GPU_CASES = (
    prompts(16, 1024),
    prompts(4, 4096),
    prompts(1, 16384),
    prompts(4, 4096, page_size=1),
    prompts(4, 4096, page_size=16),
    decode(1, 32768),
    decode(16, 8192),
    decode(64, 4096),
    decode(256, 2048),
    mixed_decode(64, 4096),
    decode(64, 4096, heads=(64, 8)),
    decode(64, 4096, heads=(32, 32)),
    decode(64, 4096, page_size=1),
    decode(64, 4096, kv_dtype=torch.float8_e4m3fn),
    decode(256, 2048, kv_dtype=torch.float8_e4m3fn),
    decode(1, 1024, is_small=True),
    decode(8, 512, is_small=True),
    prompts_and_decode(2, 128, 2048),
)
CPU_CASES = (
    prompts(2, 24),
    prompts(1, 24, page_size=16),
    decode(2, 48, is_small=True),
    prompts_and_decode(1, 2, 24),
)


class Batch:
    """The tensors of a case; each layer has its own K and V, found by one page table."""

    def __init__(self, case: Case, device: torch.device, num_layers: int) -> None:
        self.case, self.device = case, device
        self.q = self._normal(0, sum(case.qo_lens), case.heads[0])
        self.out = torch.empty_like(self.q)
        self.table: PageTable | None = None
        if case.page_size:
            self.table = page_table(case.kv_lens, case.page_size, generator=seeded(1))
        self.layers = [self._kv(2 + 2 * layer) for layer in range(num_layers)]

    def _normal(self, seed: int, *shape: int) -> Tensor:
        generator = seeded(seed, self.device)
        size = (*shape, HEAD_DIM)
        return torch.randn(size, generator=generator, device=self.device, dtype=DTYPE)

    def _kv(self, seed: int) -> KV:
        heads, tokens, dtype = self.case.heads[1], sum(self.case.kv_lens), self.case.kv_dtype
        if self.table is None:
            return tuple(self._normal(seed + i, tokens, heads).to(dtype) for i in range(2))
        return self._normal(seed, self.table.num_pages, 2, self.table.page_size, heads).to(dtype)

    def hub(self, backend: str, *, graph: bool = False) -> Call:
        """A backend of AttnHub, planned; with ``graph`` a CUDA graph may hold the calls."""
        return self._hub(backend, slice(0, len(self.case.qo_lens)), graph=graph)

    def two_calls(self, backend: str) -> Call:
        """The same, but that prompts and single queries are calls of their own."""
        count = self.case.num_prompts
        prompts = self._hub(backend, slice(0, count))
        queries = self._hub(backend, slice(count, len(self.case.qo_lens)))

        def call(kv: KV) -> Tensor:
            prompts(kv)
            return queries(kv)

        return call

    def _hub(self, backend: str, requests: slice, *, graph: bool = False) -> Call:
        """For some of the requests, into the rows that they have of one output."""
        case, table, limits = self.case, self.table, None
        qo_lens, kv_lens = case.qo_lens[requests], case.kv_lens[requests]
        if graph:
            limits = GraphLimits(
                max_batch=len(qo_lens),
                max_qo_tokens=sum(qo_lens),
                max_pages=0 if table is None else table.indices.numel(),
                max_qo_len=max(qo_lens),
            )
        attn = BatchAttention(
            *case.heads,
            HEAD_DIM,
            DTypes(DTYPE, case.kv_dtype, DTYPE),
            Paged(case.page_size) if case.page_size else Ragged(),
            variant=Variant(causal=True),
            device=self.device,
            graph=limits,
            backend=backend,
        )
        if table is None:
            attn.plan(indptr(qo_lens), RaggedKV(indptr(kv_lens)))
        else:
            first, last = (int(table.indptr[i]) for i in (requests.start, requests.stop))
            metadata = PagedKV(
                table.indptr[requests.start : requests.stop + 1] - first,
                table.indices[first:last],
                table.last_page_len[requests],
            )
            attn.plan(indptr(qo_lens), metadata)
        before = sum(case.qo_lens[: requests.start])
        rows = slice(before, before + sum(qo_lens))

        def call(kv: KV) -> Tensor:
            attn.run(self.q[rows], kv, out=self.out[rows])
            return self.out

        return call

    def flashinfer(self, backend: str) -> Call:
        """One of FlashInfer's, planned."""
        import flashinfer

        case, table = self.case, self.table
        dtypes = {"q_data_type": DTYPE, "kv_data_type": DTYPE}
        facts = (*case.heads, HEAD_DIM)
        qo_indptr = indptr(case.qo_lens).to(self.device)
        room, out = _workspace(self.device), torch.empty_like(self.q)
        if table is None:
            ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD", backend=backend)
            kv_indptr = indptr(case.kv_lens).to(self.device)
            ragged.plan(qo_indptr, kv_indptr, *facts, causal=True, **dtypes)
            return lambda kv: ragged.run(self.q, *kv, out=out)
        metadata = [x.to(self.device) for x in (table.indptr, table.indices, table.last_page_len)]
        if case.is_decode:
            paged = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                room, "NHD", use_tensor_cores=True, backend=backend
            )
            paged.plan(*metadata, *facts, case.page_size, **dtypes)
        else:
            paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
            paged.plan(qo_indptr, *metadata, *facts, case.page_size, causal=True, **dtypes)
        return lambda kv: paged.run(self.q, kv, out=out)


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(512 << 20, dtype=torch.uint8, device=device)


def ours(batch: Batch) -> tuple[str, Call]:
    """The subject: this plugin; on a CPU the reference, so that the script can be tried there."""
    if batch.device.type == "cpu":
        return "reference", batch.hub("reference")
    return "fa2_cuda", batch.hub("fa2_cuda", graph=batch.case.is_decode)


def check(case: Case, device: torch.device) -> None:
    """Raise Mismatch unless we agree with the reference on a small form of the case."""
    batch = Batch(case.shrunk(), device, num_layers=2)
    _, call = ours(batch)
    reference = batch.hub("reference")
    for kv in batch.layers:
        got = call(kv).clone()
        assert_close(got, reference(kv), name=f"{case}, small")


def peers(batch: Batch) -> dict[str, Callable[[], Call]]:
    """Who else may serve the case -> what makes it ready, which may fail."""
    if batch.device.type == "cpu":
        return {}
    if batch.case.is_mixed:
        return {"two_calls": partial(batch.two_calls, "fa2_cuda")}
    if batch.case.kv_dtype != DTYPE:
        return {}
    found = {f"flashinfer_{kind}": partial(batch.flashinfer, kind) for kind in ("fa2", "fa3")}
    if batch.table is None:
        found["torch_varlen"] = partial(batch.hub, "torch_varlen")
    return found


def calls(batch: Batch) -> dict[str, Call]:
    """Who -> the call; the first is the subject, and the others give the same output."""
    name, call = ours(batch)
    found = {name: call}
    expected = call(batch.layers[0]).clone()
    for peer, make in peers(batch).items():
        try:
            theirs = make()
            assert_close(theirs(batch.layers[0]), expected, name=peer)
        except Exception as error:  # noqa: BLE001 - whatever a package raises, we go on without it
            reason = str(error).partition("\n")[0]
            print(f"{batch.case}: without {peer}: {type(error).__name__}: {reason}")
        else:
            found[peer] = theirs
    return found


class Ceilings:
    """What this device can do at best, measured when first asked for: TB/s of a copy, TFLOP/s."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def tb_s(self) -> float:
        return copy_ceiling(self._device) / 1e3

    @cached_property
    def tflop_s(self) -> float:
        return matmul_ceiling(self._device)


def clocks(batch: Batch, subjects: Mapping[str, Call]) -> Iterator[tuple[str, dict[str, Timing]]]:
    """The timings of one layer by each clock that the case is judged by."""
    on_gpu = batch.device.type == "cuda"
    layers = [(kv,) for kv in batch.layers]
    flushed = compare_peers(
        subjects,
        device=batch.device,
        inputs_rotation=layers,
        clear_l2_bytes=CLEAR_BYTES if on_gpu else 0,
    )
    yield "flushed", flushed.timings
    if batch.case.is_decode:
        replayed = compare_peers(
            subjects, device=batch.device, inputs_rotation=layers, graph=on_gpu
        )
        yield "in a graph", replayed.timings


def measure(
    case: Case, here: results.Environment, device: torch.device, ceilings: Ceilings
) -> list[results.Row]:
    """A row for each clock: the time of a small batch, else what binds the kernel."""
    batch = Batch(case, device, case.num_layers(device))
    rows = []
    for clock, timings in clocks(batch, calls(batch)):
        if case.is_small:
            metric, unit, best = "time", "us", None
            found = {name: timing.median_us for name, timing in timings.items()}
        elif case.is_decode:
            metric, unit, best = "bandwidth of K and V", "TB/s", ceilings.tb_s
            found = {name: t.rate(case.kv_bytes) / 1e12 for name, t in timings.items()}
        else:
            metric, unit, best = "throughput", "TFLOP/s", ceilings.tflop_s
            found = {name: t.rate(case.flops) / 1e12 for name, t in timings.items()}
        value = found.pop(next(iter(found)))
        rest = {"share_of_ceiling": None if best is None else value / best, "peers": found}
        rows.append(here.row(SUITE, str(case), f"{metric}, {clock}", value, unit, **rest))
    return rows


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """Those of each case, once all of them have been checked."""
    cases = GPU_CASES if device.type == "cuda" else CPU_CASES
    for case in cases:
        check(case, device)
    ceilings = Ceilings(device)
    for case in cases:
        yield from measure(case, here, device, ceilings)


def main(arguments: list[str] | None = None) -> None:
    """Check, measure, print and write."""
    script.run(every_row, __doc__, out=Path("benchmarks/results"), arguments=arguments)


if __name__ == "__main__":
    main()
