"""The suite catches each way in which a backend of latent attention can be unsound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnhub.mla.inputs import MLAScales
from tests.testing.liars import Liar, Register, failures


def kv(**changes: Callable[[Any], torch.Tensor]) -> Callable[[Any, Any], Any]:
    """A lie about the page table."""

    def lie(problem: Any, batch: Any) -> Any:
        changed = {name: change(batch.kv) for name, change in changes.items()}
        return dataclasses.replace(batch, kv=dataclasses.replace(batch.kv, **changed), kv_lens=None)

    return lie


def pages_in_order(problem: Any, batch: Any) -> Any:
    return kv(indices=lambda kv: kv.indices.sort().values)(problem, batch)


def full_last_pages(problem: Any, batch: Any) -> Any:
    full = problem.page_size
    return kv(last_page_len=lambda kv: torch.where(kv.last_page_len > 0, full, 0).int())(
        problem, batch
    )


def first_plan_is_kept() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def stale(problem: Any, batch: Any) -> Any:
        if not problem.graph:
            return batch
        kept.append(dataclasses.replace(batch, qo_indptr=batch.qo_indptr.clone()))
        return kept[-1] if len(kept) % 2 else kept[-2]

    return stale


Args = tuple[Any, ...]
# The arguments of a run: q_nope, q_pe, ckv, kpe, out, lse, scale, scales.
OUT, LSE, SCALE, SCALES = 4, 5, 6, 7


def put(args: Args, at: int, value: Any) -> Args:
    return (*args[:at], value, *args[at + 1 :])


def no_latent_scale(honest: Any, *args: Any) -> None:
    honest(*put(args, SCALES, MLAScales(kpe=args[SCALES].kpe)))


def no_rotary_scale(honest: Any, *args: Any) -> None:
    honest(*put(args, SCALES, MLAScales(ckv=args[SCALES].ckv)))


def latent_scale_for_keys_only(honest: Any, *args: Any) -> None:
    honest(*args)
    args[OUT].div_(args[SCALES].ckv)


def scale_of_the_absorbed_heads(honest: Any, *args: Any) -> None:
    honest(*put(args, SCALE, (args[0].shape[-1] + args[1].shape[-1]) ** -0.5))


def no_rotary_part(honest: Any, q_nope: Any, q_pe: Any, *rest: Any) -> None:
    honest(q_nope, torch.zeros_like(q_pe), *rest)


def leaks(honest: Any, *args: Any) -> None:
    honest(*args)
    args[OUT].add_(0 * args[2].float().sum().to(args[OUT].dtype))


def leaves_empty_rows(honest: Any, *args: Any) -> None:
    before = args[OUT].clone()
    honest(*args)
    args[OUT].copy_(torch.where(args[OUT] == 0, before, args[OUT]))


def log2_lse(honest: Any, *args: Any) -> None:
    honest(*args)
    if args[LSE] is not None:
        args[LSE].div_(0.6931)


def no_lse_no_run(honest: Any, *args: Any) -> None:
    honest(*put(args, LSE, args[LSE].zero_()))


def one_query_each(honest: Any, q_nope: Any, *rest: Any) -> None:
    honest(q_nope, *rest)
    if len(q_nope) == 16:
        rest[OUT - 1][1::4] = rest[OUT - 1][::4]


def rows_packed(honest: Any, q_nope: Any, *rest: Any) -> None:
    honest(q_nope.as_strided(q_nope.shape, torch.empty(q_nope.shape).stride()), *rest)


def caches_packed(honest: Any, q_nope: Any, q_pe: Any, ckv: Any, *rest: Any) -> None:
    honest(q_nope, q_pe, ckv.as_strided(ckv.shape, torch.empty(ckv.shape).stride()), *rest)


# How the run lies, what the failure of the base corner says.
RUNS = [
    (no_latent_scale, "mixed: out:"),
    (no_rotary_scale, "mixed: out:"),
    (latent_scale_for_keys_only, "mixed: out:"),
    (scale_of_the_absorbed_heads, "mixed: out:"),
    (no_rotary_part, "mixed: out:"),
    (leaks, "NaN at"),
    (leaves_empty_rows, "NaN at"),
    (log2_lse, "mixed: lse:"),
    (no_lse_no_run, "four each: 'liar' raised"),
    (one_query_each, "four each: out:"),
    (rows_packed, "decode: "),
    (caches_packed, "decode: "),
]


@pytest.mark.parametrize(("lie", "said"), RUNS, ids=lambda x: getattr(x, "__name__", ""))
def test_catches_a_wrong_run(register: Register, lie: Callable[..., None], said: str) -> None:
    register(Liar("mla", run=lie), op="mla")
    (message,) = failures(lambda corner: corner == "serves-base", "mla").values()
    assert said in message
    assert "problem: mla on cpu: num_heads=16" in message


@pytest.mark.parametrize("lie", [pages_in_order, full_last_pages], ids=lambda f: f.__name__)
def test_catches_misread_pages(register: Register, lie: Callable[[Any, Any], Any]) -> None:
    register(Liar("mla", batch=lie), op="mla")
    found = failures(lambda corner: "page" in corner or corner == "serves-base", "mla")
    every = {"serves-base", "serves-page_size=1", "serves-page_size=16", "serves-page_size=64"}
    full_anyway = {"serves-page_size=1"} if lie is full_last_pages else set()
    assert set(found) == every - full_anyway


def test_catches_an_ignored_mask(register: Register) -> None:
    lie = lambda p: dataclasses.replace(p, features=frozenset())  # noqa: E731
    register(Liar("mla", problem=lie), op="mla")
    assert set(failures(op="mla")) == {"serves-features=causal"}


def test_catches_a_graph_whose_plan_is_not_refilled(register: Register) -> None:
    register(Liar("mla", batch=first_plan_is_kept()), op="mla")
    found = failures(lambda corner: "graph" in corner or "base" in corner, "mla")
    assert set(found) == {"serves-graph=True"}


def test_catches_rows_past_the_batch_that_are_not_zeroed(register: Register) -> None:
    def lie(honest: Any, q_nope: Any, *args: Any) -> None:
        honest(q_nope, *args)
        args[OUT - 1][-1] = 1.0

    register(Liar("mla", run=lie), op="mla")
    found = failures(lambda corner: "graph" in corner, "mla")
    assert "elements beyond tolerance" in found["serves-graph=True"]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_catches_a_float8_cache_read_as_the_other_kind(register: Register, dtype: str) -> None:
    def lie(honest: Any, q_nope: Any, q_pe: Any, ckv: Any, *args: Any) -> None:
        kinds = {torch.float8_e4m3fn: torch.float8_e5m2, torch.float8_e5m2: torch.float8_e4m3fn}
        honest(q_nope, q_pe, ckv.view(kinds.get(ckv.dtype, ckv.dtype)), *args)

    register(Liar("mla", run=lie), op="mla")
    found = failures(lambda corner: "kv_dtype" in corner, "mla")
    assert f"serves-kv_dtype={dtype}" in found


def test_catches_results_that_depend_on_the_batch(register: Register) -> None:
    def lie(honest: Any, q_nope: Any, *args: Any) -> None:
        honest(q_nope, *args)
        args[OUT - 1].mul_(1 + 2e-7 * len(q_nope))

    register(Liar("mla", run=lie), op="mla")
    found = failures(lambda corner: "deterministic" in corner or "base" in corner, "mla")
    assert "mixed, request 0 alone: out differs" in found["serves-deterministic=True"]
    assert "serves-base" not in found
