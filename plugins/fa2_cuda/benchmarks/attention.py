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
from attnhub.attn import BatchAttention, GraphLimits, Paged, PagedKV, Ragged, RaggedKV
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
    is_small: bool = False

    @property
    def is_decode(self) -> bool:
        """Whether each request has one query."""
        return max(self.qo_lens) == 1

    @property
    def flops(self) -> float:
        """Of both products, where a causal prompt counts half."""
        pairs = sum(n * m - n * n / 2 for n, m in zip(self.qo_lens, self.kv_lens, strict=True))
        return 4 * pairs * self.heads[0] * HEAD_DIM

    @property
    def kv_bytes(self) -> int:
        """K and V of one layer."""
        return 2 * sum(self.kv_lens) * self.heads[1] * HEAD_DIM * DTYPE.itemsize

    def num_layers(self, device: torch.device) -> int:
        """How many exceed the L2 together; one of a prompt, which is bound by its products."""
        if not self.is_decode:
            return 1
        clear = CLEAR_BYTES if device.type == "cuda" else 0
        return max(-(-clear // self.kv_bytes), MIN_LAYERS)

    def shrunk(self) -> Case:
        """The same facts, small enough for the reference: short, long and whole pages."""
        kv_lens = (5, 64, 333)
        qo_lens = (1, 1, 1) if self.is_decode else (5, 33, 200)
        return replace(self, name="check", qo_lens=qo_lens, kv_lens=kv_lens, is_small=False)

    def __str__(self) -> str:
        kind = "decode" if self.is_decode else "prefill"
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
    decode(1, 1024, is_small=True),
    decode(8, 512, is_small=True),
)
CPU_CASES = (prompts(2, 24), prompts(1, 24, page_size=16), decode(2, 48, is_small=True))


class Batch:
    """The tensors of a case; each layer has its own K and V, found by one page table."""

    def __init__(self, case: Case, device: torch.device, num_layers: int) -> None:
        self.case, self.device = case, device
        self.q = self._normal(0, sum(case.qo_lens), case.heads[0])
        self.table: PageTable | None = None
        if case.page_size:
            self.table = page_table(case.kv_lens, case.page_size, generator=seeded(1))
        self.layers = [self._kv(2 + 2 * layer) for layer in range(num_layers)]

    def _normal(self, seed: int, *shape: int) -> Tensor:
        generator = seeded(seed, self.device)
        size = (*shape, HEAD_DIM)
        return torch.randn(size, generator=generator, device=self.device, dtype=DTYPE)

    def _kv(self, seed: int) -> KV:
        heads, tokens = self.case.heads[1], sum(self.case.kv_lens)
        if self.table is None:
            return self._normal(seed, tokens, heads), self._normal(seed + 1, tokens, heads)
        return self._normal(seed, self.table.num_pages, 2, self.table.page_size, heads)

    def hub(self, backend: str, *, graph: bool = False) -> Call:
        """A backend of AttnHub, planned; with ``graph`` a CUDA graph may hold the calls."""
        case, table, limits = self.case, self.table, None
        if graph:
            limits = GraphLimits(
                max_batch=len(case.qo_lens),
                max_qo_tokens=sum(case.qo_lens),
                max_pages=0 if table is None else table.indices.numel(),
                max_qo_len=max(case.qo_lens),
            )
        attn = BatchAttention(
            *case.heads,
            HEAD_DIM,
            DTYPE,
            Paged(case.page_size) if case.page_size else Ragged(),
            variant=Variant(causal=True),
            device=self.device,
            graph=limits,
            backend=backend,
        )
        if table is None:
            attn.plan(indptr(case.qo_lens), RaggedKV(indptr(case.kv_lens)))
        else:
            metadata = PagedKV(table.indptr, table.indices, table.last_page_len)
            attn.plan(indptr(case.qo_lens), metadata)
        out = torch.empty_like(self.q)
        return lambda kv: attn.run(self.q, kv, out=out)

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
        assert_close(call(kv), reference(kv), name=f"{case}, small")


def peers(batch: Batch) -> dict[str, Callable[[], Call]]:
    """Who else may serve the case -> what makes it ready, which may fail."""
    if batch.device.type == "cpu":
        return {}
    found = {f"flashinfer_{kind}": partial(batch.flashinfer, kind) for kind in ("fa2", "fa3")}
    if batch.table is None:
        found["torch_varlen"] = partial(batch.hub, "torch_varlen")
    return found


def calls(batch: Batch) -> dict[str, Call]:
    """Who -> the call; the first is the subject, and the others give the same output."""
    name, call = ours(batch)
    found = {name: call}
    expected = call(batch.layers[0])
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
    """What this device can do at best, measured when first asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def tb_s(self) -> float:
        """TB/s of a copy, read plus written."""
        return copy_ceiling(self._device) / 1e3

    @cached_property
    def tflop_s(self) -> float:
        """TFLOP/s of a matrix product."""
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
        share = None if best is None else value / best
        rows.append(
            here.row(
                SUITE,
                str(case),
                f"{metric}, {clock}",
                value,
                unit,
                share_of_ceiling=share,
                peers=found,
            )
        )
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
