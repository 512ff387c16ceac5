"""Measure launch settings on this GPU, and keep those that are better than the tables'.

From each default it goes to the fastest neighbour, one number doubled or halved, as long as there
is a faster one. The last is measured once more beside the default alone, since the fastest of many
is so partly by luck, and kept if it is at least 2 % faster.

    python -m attnhub_triton_misc.benchmarks.tune [--op rmsnorm ...] [--hidden 4096 ...]
        [--dtype bfloat16] [--tokens 16384 128 ...] [--device cuda:0] [--dry-run]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import attnhub
from attnhub.plugin import Backend, describe, dtype_of, hookimpl, registry
from attnhub.testing.generators import seeded
from attnhub.testing.results import usable_folder
from attnhub.testing.timing import CLEAR_BYTES, compare_peers
from attnhub_triton_misc import tuned

BACKEND = "triton_misc"
#: What a setting must gain to be kept: less is within what two runs differ by.
WORTH = 0.02
#: From so many tokens on launches are timed one by one behind a read that empties the L2 and hides
#: the host; fewer are timed in a graph, since a host takes longer than they do.
MANY = 4096
FLUSHED = 4 * CLEAR_BYTES
HEADS, HEAD_DIM, PAGE = (32, 8), 128, 16

Call = Callable[[], object]
#: Given random numbers of a shape, tokens and a hidden size: a call.
Make = Callable[[Callable[..., Tensor], int, int], Call]


def rmsnorm(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """Out of place."""
    x, weight = random(tokens, hidden), random(hidden)
    return partial(attnhub.norm.rmsnorm, x, weight, out=torch.empty_like(x))


def fused_add_rmsnorm(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """In place; of zeros, which stay so however often the sum is taken in."""
    x, residual = (random(tokens, hidden).zero_() for _ in range(2))
    return partial(attnhub.norm.fused_add_rmsnorm, x, residual, random(hidden))


def layernorm(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """Out of place, with a bias."""
    x, weight, bias = random(tokens, hidden), random(hidden), random(hidden)
    return partial(attnhub.norm.layernorm, x, weight, bias, out=torch.empty_like(x))


def silu_and_mul(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """Gate and up of ``hidden`` each."""
    out = random(tokens, hidden)
    return partial(attnhub.activation.silu_and_mul, random(tokens, 2 * hidden), out=out)


def quantize_fp8(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """By a given scale."""
    x, dtype = random(tokens, hidden), torch.float8_e4m3fn
    one, out = torch.ones((), device=x.device), torch.empty_like(x, dtype=dtype)
    return partial(attnhub.quantization.quantize_fp8, x, dtype, scale=one, out=out)


def apply_rope(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """In place, queries and keys of 32 and 8 heads."""
    q, k = (random(tokens, heads, HEAD_DIM) for heads in HEADS)
    positions = torch.arange(tokens, dtype=torch.int32, device=q.device)
    return partial(attnhub.rope.apply_rope_, q, k, positions, attnhub.Rope(theta=5e5))


def append_paged_kv(random: Callable[..., Tensor], tokens: int, hidden: int) -> Call:
    """One request, its pages shuffled."""
    k, v = (random(tokens, HEADS[1], HEAD_DIM) for _ in range(2))
    pages = -(-tokens // PAGE)
    cache = random(pages, 2, PAGE, HEADS[1], HEAD_DIM)
    i32: dict[str, Any] = {"dtype": torch.int32, "device": k.device}
    last = torch.tensor([tokens - (pages - 1) * PAGE], **i32)
    table = attnhub.PagedKV(torch.tensor([0, pages], **i32), torch.randperm(pages, **i32), last)
    requests, positions = torch.zeros(tokens, **i32), torch.arange(tokens, **i32)
    return partial(attnhub.page.append_paged_kv, k, v, cache, table, requests, positions)


OPS: Mapping[str, Make] = {
    make.__name__: make
    for make in (
        rmsnorm,
        fused_add_rmsnorm,
        layernorm,
        silu_and_mul,
        quantize_fp8,
        apply_rope,
        append_paged_kv,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The best setting of a case, and microseconds of both, measured side by side."""

    key: str
    default: Any
    best: Any
    default_us: float
    best_us: float

    @property
    def kept(self) -> Any | None:
        """The setting, if it is worth keeping."""
        return self.best if self.best_us <= (1 - WORTH) * self.default_us else None


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """A plugin that offers backends once more under other names, each of which plans anew."""

    backends: list[Backend]

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        return self.backends


@contextmanager
def copies(count: int) -> Iterator[list[str]]:
    """Names of copies of this plugin's backends, which are there while it lasts."""
    hub, names = registry(), [f"{BACKEND}_{i}" for i in range(count)]
    own = [b for op in hub.ops for b in hub.backends(op) if b.name == BACKEND]
    hub.register(_Copies([replace(b, name=name) for name in names for b in own]), "copies")
    try:
        yield names
    finally:
        hub.unregister("copies")


def planned(call: Call, backend: str, choice: tuned.Choice) -> Call:
    """The call by one backend, whose plan is made here, of what ``choice`` says."""

    def run() -> None:
        with attnhub.use(backend):
            call()

    with tuned.trying(choice):
        run()
    return run


def _always(setting: Any, key: str, default: Any) -> Any:
    return setting


def default_of(call: Call) -> tuple[str, Any]:
    """The key of a call's problem and the setting that the tables have for it."""
    seen: dict[str, Any] = {}
    with copies(1) as [name]:
        planned(call, name, seen.setdefault)
    [found] = seen.items()
    return found


def times(
    call: Call, settings: Sequence[Any], *, device: torch.device, is_large: bool
) -> list[float]:
    """Microseconds of a call by each setting, measured in turn."""
    with copies(len(settings)) as names:
        peers = {
            name: planned(call, name, partial(_always, setting))
            for name, setting in zip(names, settings, strict=True)
        }
        found = compare_peers(
            peers,
            device=device,
            graph=not is_large,
            clear_l2_bytes=FLUSHED if is_large else 0,
        )
    return [found.timings[name].median_us for name in names]


def neighbours(setting: Any) -> list[Any]:
    """The legal settings that differ in one number, which is half or twice as large."""
    changed = (
        replace(setting, **{name: size}, reason=tuned.REASON)
        for name in setting.CHOSEN
        for size in (getattr(setting, name) // 2, getattr(setting, name) * 2)
    )
    return [near for near in changed if near.is_legal()]


def search(key: str, default: Any, measure: Callable[[Sequence[Any]], list[float]]) -> Result:
    """Go from the default to faster neighbours until there are none."""
    best, seen = default, {default}
    while near := [setting for setting in neighbours(best) if setting not in seen]:
        seen.update(near)
        us, *others = measure([best, *near])
        fastest = min(others)
        if fastest > (1 - WORTH) * us:
            break
        best = near[others.index(fastest)]
    default_us, best_us = measure([default, best])
    return Result(key=key, default=default, best=best, default_us=default_us, best_us=best_us)


def every_result(options: argparse.Namespace) -> Iterator[Result]:
    """Of each op and size; ops that no hidden size concerns have one case for all of them."""
    device, seen = torch.device(options.device), set()
    generator = seeded(0, device)

    def random(*shape: int) -> Tensor:
        dtype = dtype_of(options.dtype)
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    for name in options.op:
        for hidden in options.hidden:
            for tokens in options.tokens:
                call = OPS[name](random, tokens, hidden)
                key, default = default_of(call)
                if key not in seen:
                    seen.add(key)
                    measure = partial(times, call, device=device, is_large=tokens >= MANY)
                    yield search(key, default, measure)


def table(results: Sequence[Result]) -> Table:
    """The results as a user reads them."""
    shown = Table("case", "default us", "best us", "setting")
    for result in results:
        kept = result.kept
        chosen = kept and ", ".join(f"{getattr(kept, name)} {name}" for name in kept.CHOSEN)
        shown.add_row(
            result.key,
            f"{result.default_us:.2f}",
            f"{result.best_us:.2f}" if kept else "",
            chosen or "the default",
        )
    return shown


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--op", nargs="+", choices=OPS, default=[*OPS])
    parser.add_argument("--hidden", nargs="+", type=int, default=[4096])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument(
        "--tokens",
        nargs="+",
        type=int,
        default=[16384, 128],
        help="a setting is for one count of tokens, rounded up to a power of two",
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    options, console = options_of(arguments), Console()
    device = describe(options.device)
    if not options.dry_run:
        usable_folder(tuned.file_of(device).parent)  # before anything is measured
    results = list(every_result(options))
    console.print(table(results))
    if not options.dry_run:
        file = tuned.save(device, {result.key: result.kept for result in results})
        console.print(f"wrote {file}")


if __name__ == "__main__":
    main()
