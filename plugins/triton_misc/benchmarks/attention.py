"""Attention in Triton: prefill as a share of FlashAttention-2's rate, decode of copy bandwidth.

Beside ours, in the same run: FlashAttention-2 through torch's SDPA, on the same ragged prompts of
equal length seen as a dense batch (heads repeated for it, as it takes no groups), and fa2_cuda
where it is installed.

    python plugins/triton_misc/benchmarks/attention.py [--device cuda:0] [--commit HASH]
        [--out benchmarks/results]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnhub import Variant
from attnhub.attn import BatchAttention, Paged, PagedKV, Ragged, RaggedKV
from attnhub.errors import DispatchError
from attnhub.testing import results, script
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub.testing.timing import CLEAR_BYTES, compare_peers, copy_ceiling, host_overhead

SUITE = "triton-misc-attention"
BACKENDS = ("triton_misc", "fa2_cuda")
HEADS, HEAD_DIM, PAGE = (32, 8), 128, 16
DTYPE = torch.bfloat16
#: Read before each launch: long enough to hide 200 us of a slow host, not only the L2's contents.
FLUSHED = 4 * CLEAR_BYTES

Call = Callable[[], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Requests of equal length: causal prompts over ragged keys, or decode over pages."""

    batch: int
    length: int
    is_decode: bool = False

    def __str__(self) -> str:
        return f"{'decode' if self.is_decode else 'prefill'} B{self.batch} L{self.length} 32/8"

    @property
    def flops(self) -> float:
        """Of both products; a causal prompt counts half."""
        return 2.0 * self.batch * self.length**2 * HEADS[0] * HEAD_DIM

    @property
    def kv_bytes(self) -> int:
        """K and V."""
        return 2 * self.batch * self.length * HEADS[1] * HEAD_DIM * DTYPE.itemsize


CASES = (
    Case(batch=16, length=1024),
    Case(batch=4, length=4096),
    Case(batch=1, length=16384),
    Case(batch=16, length=8192, is_decode=True),
    Case(batch=64, length=4096, is_decode=True),
    Case(batch=256, length=2048, is_decode=True),
    Case(batch=1, length=32768, is_decode=True),
)


def random(device: torch.device, *shape: int) -> Tensor:
    """Normal numbers, the same in every run."""
    return torch.randn(shape, generator=seeded(0, device), device=device, dtype=DTYPE)


def subjects(case: Case, device: torch.device) -> dict[str, Call]:
    """Who -> one call on the same tensors; ours first."""
    batch, length = case.batch, case.length
    starts = torch.arange(batch + 1, dtype=torch.int32)
    q = random(device, batch if case.is_decode else batch * length, HEADS[0], HEAD_DIM)
    found: dict[str, Call] = {}
    if case.is_decode:
        pages = length // PAGE
        cache = random(device, batch * pages, 2, PAGE, HEADS[1], HEAD_DIM)
        ids = torch.randperm(batch * pages).int()
        table = PagedKV(starts * pages, ids, torch.full((batch,), PAGE, dtype=torch.int32))
        for name in BACKENDS:
            attn = planned(name, Paged(PAGE), Variant(), starts, table, device)
            if attn is not None:
                found[name] = lambda attn=attn: attn.run(q, cache)
        return found
    k, v = (random(device, batch * length, HEADS[1], HEAD_DIM) for _ in range(2))
    for name in BACKENDS:
        ends = RaggedKV(starts * length)
        attn = planned(name, Ragged(), Variant(causal=True), starts * length, ends, device)
        if attn is not None:
            found[name] = lambda attn=attn: attn.run(q, (k, v))
    found["FlashAttention-2 (SDPA)"] = sdpa(case, q, k, v)
    return found


def planned(
    name: str,
    layout: Paged | Ragged,
    variant: Variant,
    qo_indptr: Tensor,
    metadata: PagedKV | RaggedKV,
    device: torch.device,
) -> BatchAttention | None:
    """Ready to run; None where the backend is not there."""
    try:
        attn = BatchAttention(
            *HEADS, HEAD_DIM, DTYPE, layout, variant=variant, device=device, backend=name
        )
        attn.plan(qo_indptr, metadata)
    except DispatchError as error:
        print(f"{name}: {str(error).splitlines()[0]}")
        return None
    return attn


def sdpa(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Call:
    """Dense, every query head with its own keys."""
    group = HEADS[0] // HEADS[1]

    def dense(x: Tensor, repeats: int) -> Tensor:
        wide = x.repeat_interleave(repeats, dim=1)
        return wide.view(case.batch, case.length, -1, HEAD_DIM).transpose(1, 2).contiguous()

    q, k, v = dense(q, 1), dense(k, group), dense(v, group)

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(0, 1)

    return run


def measure(case: Case, here: results.Environment, device: torch.device) -> Iterator[results.Row]:
    """Rate of a case, beside that of its peers."""
    calls = subjects(case, device)
    ours = calls[BACKENDS[0]]
    for name, call in calls.items():
        assert_close(ours(), call(), name=name)
    timed = compare_peers(calls, device=device, clear_l2_bytes=FLUSHED).timings
    amount, metric, unit = (
        (case.kv_bytes, "bandwidth of K and V", "GB/s")
        if case.is_decode
        else (case.flops / 1e3, "throughput", "TFLOP/s")
    )
    rates = {name: timing.rate(amount) / 1e9 for name, timing in timed.items()}
    rate = rates.pop(BACKENDS[0])
    share = {"share_of_ceiling": rate / copy_ceiling(device)} if case.is_decode else {}
    yield here.row(SUITE, str(case), metric, rate, unit, peers=rates, **share)
    if case.is_decode:
        yield here.row(SUITE, str(case), "host time", host_overhead(ours, calls=200), "us")


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """Those of each case."""
    if device.type != "cuda":
        raise SystemExit("attention.py measures kernels in Triton: give --device cuda:0")
    for case in CASES:
        yield from measure(case, here, device)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    script.run(every_row, __doc__, out=Path("benchmarks/results"), arguments=arguments)


if __name__ == "__main__":
    main()
