"""Memory-bound ops: share of the copy bandwidth, time of small batches, host time, first call.

Beside ours, in the same run: FlashInfer, if it is installed, on the same tensors. Three sizes: of
16384 tokens the bandwidth counts, behind a read that empties the L2; of 128 the time in a CUDA
graph; of one token the host time, beside that of the same call launched by Triton. First calls are
those of a process whose Triton has an empty cache, the compiler of the first op included in none of
them.

    python plugins/triton_misc/benchmarks/memory_bound.py [--device cuda:0] [--commit HASH]
        [--out benchmarks/results]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import PagedKV
from attnhub.testing import results, script
from attnhub.testing.generators import seeded
from attnhub.testing.timing import CLEAR_BYTES, compare_peers, copy_ceiling, host_overhead

SUITE = "triton-misc"
BACKEND = "triton_misc"
LARGE, SMALL, ONE = 16384, 128, 1
#: Read before each launch: long enough to hide 200 us of a slow host, not only the L2's contents.
FLUSHED = 4 * CLEAR_BYTES
HEADS, HEAD_DIM, PAGE = (32, 8), 128, 16
DTYPE = torch.bfloat16

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One call of ours and, where FlashInfer has the op, one of theirs; bytes read and written."""

    ours: Call
    theirs: Call | None
    num_bytes: int


Make = Callable[[int, torch.device, Any], Work]


def random(device: torch.device, *shape: int) -> Tensor:
    """Normal numbers, the same in every run."""
    return torch.randn(shape, generator=seeded(0, device), device=device, dtype=DTYPE)


def rmsnorm(hidden: int) -> Make:
    """Out of place."""

    def make(tokens: int, device: torch.device, peer: Any) -> Work:
        x, weight = random(device, tokens, hidden), random(device, hidden)
        out = torch.empty_like(x)
        return Work(
            ours=lambda: attnhub.norm.rmsnorm(x, weight, out=out),
            theirs=peer and (lambda: peer.norm.rmsnorm(x, weight, out=out)),
            num_bytes=2 * x.nbytes,
        )

    return make


def fused_add_rmsnorm(hidden: int) -> Make:
    """In place."""

    def make(tokens: int, device: torch.device, peer: Any) -> Work:
        # Zeros: they stay what they are however often the sum is taken in.
        x, residual = (torch.zeros(tokens, hidden, device=device, dtype=DTYPE) for _ in range(2))
        weight = random(device, hidden)
        return Work(
            ours=lambda: attnhub.norm.fused_add_rmsnorm(x, residual, weight),
            theirs=peer and (lambda: peer.norm.fused_add_rmsnorm(x, residual, weight)),
            num_bytes=4 * x.nbytes,
        )

    return make


def silu_and_mul(hidden: int) -> Make:
    """Gate and up of ``hidden`` each."""

    def make(tokens: int, device: torch.device, peer: Any) -> Work:
        x = random(device, tokens, 2 * hidden)
        out = torch.empty(tokens, hidden, device=device, dtype=DTYPE)
        return Work(
            ours=lambda: attnhub.activation.silu_and_mul(x, out=out),
            theirs=peer and (lambda: peer.activation.silu_and_mul(x, out=out)),
            num_bytes=x.nbytes + out.nbytes,
        )

    return make


def apply_rope(tokens: int, device: torch.device, peer: Any) -> Work:
    """In place, queries and keys; angles are computed, not looked up."""
    q, k = (random(device, tokens, heads, HEAD_DIM) for heads in HEADS)
    positions = torch.arange(tokens, dtype=torch.int32, device=device)
    rope = attnhub.Rope(theta=5e5)
    theirs = peer and (
        lambda: peer.rope.apply_rope_pos_ids_inplace(q, k, positions, rope_theta=5e5)
    )
    return Work(
        ours=lambda: attnhub.rope.apply_rope_(q, k, positions, rope),
        theirs=theirs,
        num_bytes=2 * (q.nbytes + k.nbytes),
    )


def append_paged_kv(tokens: int, device: torch.device, peer: Any) -> Work:
    """One request, its pages shuffled."""
    k, v = (random(device, tokens, HEADS[1], HEAD_DIM) for _ in range(2))
    pages = -(-tokens // PAGE)
    cache = torch.empty(pages, 2, PAGE, HEADS[1], HEAD_DIM, device=device, dtype=DTYPE)
    indptr = torch.tensor([0, pages], dtype=torch.int32, device=device)
    indices = torch.randperm(pages, device=device, dtype=torch.int32)
    last = torch.tensor([tokens - (pages - 1) * PAGE], dtype=torch.int32, device=device)
    table = PagedKV(indptr, indices, last)
    requests = torch.zeros(tokens, dtype=torch.int32, device=device)
    positions = torch.arange(tokens, dtype=torch.int32, device=device)
    theirs = peer and (
        lambda: peer.append_paged_kv_cache(
            k, v, requests, positions, cache, indices, indptr, last, kv_layout="NHD"
        )
    )
    return Work(
        ours=lambda: attnhub.page.append_paged_kv(k, v, cache, table, requests, positions),
        theirs=theirs,
        num_bytes=2 * (k.nbytes + v.nbytes),
    )


def quantize_fp8(tokens: int, device: torch.device, peer: Any) -> Work:
    """A scale fitted to each token."""
    x = random(device, tokens, 4096)
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    return Work(
        ours=lambda: attnhub.quantization.quantize_fp8(x, out.dtype, axis=0, out=out),
        theirs=None,
        num_bytes=x.nbytes + out.nbytes,
    )


OPS: Mapping[str, Make] = {
    "rmsnorm 4096": rmsnorm(4096),
    "rmsnorm 8192": rmsnorm(8192),
    "fused_add_rmsnorm 4096": fused_add_rmsnorm(4096),
    "fused_add_rmsnorm 8192": fused_add_rmsnorm(8192),
    "silu_and_mul 4096": silu_and_mul(4096),
    "silu_and_mul 14336": silu_and_mul(14336),
    "apply_rope_ 32/8 128": apply_rope,
    "append_paged_kv 8 128 page 16": append_paged_kv,
    "quantize_fp8 4096 per token": quantize_fp8,
}


def by_us(call: Call) -> Call:
    """The call by this plugin, or an error."""

    def run() -> None:
        with attnhub.use(BACKEND):
            call()

    return run


def flashinfer(device: torch.device) -> Any:
    """The module, if it is installed and there is a GPU for it."""
    if device.type == "cpu":
        return None
    try:
        import flashinfer as found
    except ImportError:
        return None
    return found


def first_calls(device: torch.device) -> Iterator[tuple[str, float]]:
    """Seconds until the result of each op's first call is there."""
    for name, make in OPS.items():
        call = by_us(make(SMALL, device, None).ours)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        yield name, time.perf_counter() - start


def by_triton(call: Call) -> tuple[float, float]:
    """Microseconds of the host where Triton launches: of the call, and of the launch in it."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("attnhub.kernels.triton_launch._is_direct", lambda kernel, device: False)
        return host_overhead(call, calls=500), triton_share(call)


def triton_share(call: Call, calls: int = 500) -> float:
    """The microseconds that Triton's own launch takes of one call."""
    from triton.runtime.jit import JITFunction

    spent = 0.0
    run = JITFunction.run

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        try:
            return run(self, *args, **kwargs)
        finally:
            spent += time.perf_counter() - start

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(JITFunction, "run", timed)
        for _ in range(calls):
            call()
    return spent / calls * 1e6


def measure(name: str, here: results.Environment, device: torch.device) -> Iterator[results.Row]:
    """Every row of an op."""
    peer, make = flashinfer(device), OPS[name]
    for tokens in (LARGE, SMALL):
        work = make(tokens, device, peer)
        subjects = {BACKEND: by_us(work.ours)}
        if work.theirs is not None:
            subjects["flashinfer"] = work.theirs
        is_large = tokens == LARGE
        timed = compare_peers(
            subjects,
            device=device,
            graph=not is_large,
            clear_l2_bytes=FLUSHED if is_large else 0,
        ).timings
        case = f"{name}, {tokens} tokens"
        if is_large:
            rate = {who: timing.rate(work.num_bytes) / 1e9 for who, timing in timed.items()}
            ours = rate.pop(BACKEND)
            share = ours / copy_ceiling(device)
            yield here.row(
                SUITE, case, "bandwidth", ours, "GB/s", share_of_ceiling=share, peers=rate
            )
        else:
            us = {who: timing.median_us for who, timing in timed.items()}
            yield here.row(SUITE, case, "time in a graph", us.pop(BACKEND), "us", peers=us)
    call = make(ONE, device, None).ours
    with attnhub.use(BACKEND):
        host = host_overhead(call, calls=500)
        whole, launch = by_triton(call)
    case = f"{name}, {ONE} token"
    yield here.row(SUITE, case, "host time", host, "us", peers={"launched by Triton": whole})
    yield here.row(SUITE, case, "host time of Triton's launch alone", launch, "us")


def every_row(device: torch.device, here: results.Environment) -> Iterator[results.Row]:
    """Those of each op; the first calls first."""
    if device.type != "cuda":
        raise SystemExit("memory_bound.py measures kernels in Triton: give --device cuda:0")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TRITON_CACHE_DIR"] = empty
        compile_something(device)
        for name, seconds in first_calls(device):
            yield here.row(SUITE, name, "first call", seconds, "s")
        for name in OPS:
            yield from measure(name, here, device)


def compile_something(device: torch.device) -> None:
    """Pay what the first kernel of a process pays: Triton's import and its launcher's stub."""
    x = torch.zeros(8, dtype=torch.bool, device=device)
    with attnhub.use(BACKEND):
        attnhub.quantization.packbits(x)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    script.run(every_row, __doc__, out=Path("benchmarks/results"), arguments=arguments)


if __name__ == "__main__":
    main()
