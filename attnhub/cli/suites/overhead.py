"""What AttnHub costs on the host: kernels are stubs, so nothing else is in the figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import attnhub
from attnhub.attn.problem import AttentionProblem
from attnhub.cli.suites import stubs
from attnhub.cli.suites.process import run_python
from attnhub.core import device as devices
from attnhub.core import dispatch
from attnhub.core.problem import Extent
from attnhub.testing.results import Environment, Row
from attnhub.testing.timing import host_overhead

_ATTENTION, _RMSNORM = "attention", "norm.rmsnorm"
_BATCH, _PAGES, _PAGE_SIZE, _HEADS, _KV_HEADS, _DIM = 8, 64, 16, 32, 8, 128
_NO_PARAMS: dict[str, Any] = {}

_TIMED = """
import time, torch
start = time.process_time()
{}
print((time.process_time() - start) * 1e3)
"""
_IMPORT = "import attnhub"
_FIRST_USE = """import attnhub
attnhub.attention, attnhub.BatchAttention
from attnhub.core import discovery
discovery.default()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A figure of this suite: how it is measured, and what it may be at most."""

    case: str
    limit: float
    unit: str
    measure: Callable[[str], float]


def rows(here: Environment, device: str) -> list[Row]:
    """Every figure; ``share_of_ceiling`` is the share of its budget, so smaller is better."""
    return [_row(budget, budget.measure(device), here) for budget in BUDGETS]


def _row(budget: Budget, value: float, here: Environment) -> Row:
    share = value / budget.limit
    return here.row(
        "overhead", budget.case, "host time", value, budget.unit, share_of_ceiling=share
    )


def _best(fn: Callable[[], object], calls: int = 500) -> float:
    """Microseconds a call. Runs are short, so that some fall between what else the machine does."""
    return host_overhead(fn, calls=calls, repeats=40)


def _planned(device: str) -> tuple[attnhub.BatchAttention, torch.Tensor, torch.Tensor]:
    """A decode batch, planned, with its queries and its cache."""
    attn = attnhub.BatchAttention(
        _HEADS,
        _KV_HEADS,
        _DIM,
        torch.bfloat16,
        attnhub.Paged(page_size=_PAGE_SIZE),
        device=device,
        variant=attnhub.Variant(causal=True),
    )
    each = _PAGES // _BATCH
    indptr = torch.arange(0, _PAGES + 1, each, dtype=torch.int32)
    indices = torch.arange(_PAGES, dtype=torch.int32)
    last = torch.full((_BATCH,), _PAGE_SIZE, dtype=torch.int32)
    attn.plan(torch.arange(_BATCH + 1, dtype=torch.int32), attnhub.PagedKV(indptr, indices, last))
    shape = (_PAGES, 2, _PAGE_SIZE, _KV_HEADS, _DIM)
    cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    return attn, torch.zeros(_BATCH, _HEADS, _DIM, dtype=torch.bfloat16, device=device), cache


def _plan_run(device: str) -> float:
    with stubs.registry(stubs.Everything(_ATTENTION)):
        _, q, cache = _planned(device)
        plan, _ = dispatch.default().plan(AttentionProblem(**_facts(devices.describe(device))))
        k, v = cache.unbind(1)
        out, scales = torch.empty_like(q), attnhub.Scales()
        return _best(lambda: plan.run(q, k, v, out, None, None, scales, _NO_PARAMS))


def _batch_run(device: str) -> float:
    with stubs.registry(stubs.Everything(_ATTENTION)):
        attn, q, cache = _planned(device)
        out = torch.empty_like(q)
        return _best(lambda: attn.run(q, cache, out=out))


def _batch_run_pair(device: str) -> float:
    with stubs.registry(stubs.Everything(_ATTENTION)):
        attn, q, cache = _planned(device)
        out, (k, v) = torch.empty_like(q), cache.unbind(1)
        return _best(lambda: attn.run(q, (k, v), out=out))


def _functional(device: str) -> float:
    with stubs.registry(stubs.Everything(_RMSNORM)):
        x = torch.zeros(_BATCH, 4096, dtype=torch.bfloat16, device=device)
        weight = torch.ones(4096, dtype=torch.bfloat16, device=device)
        return _best(lambda: attnhub.norm.rmsnorm(x, weight))


def _selection(device: str) -> float:
    """A decision that nothing cached: the problem is built, and every backend is asked."""
    with stubs.registry(stubs.Nine()) as registry:
        facts = _facts(devices.named("h100"))
        dispatcher = dispatch.default()

        def select() -> None:
            registry.touch()
            dispatcher.decide(AttentionProblem(**facts))

        return _best(select, calls=20)


def _facts(device: devices.Device) -> dict[str, Any]:
    dtypes = dict.fromkeys(("q_dtype", "kv_dtype", "out_dtype"), "bfloat16")
    variant = attnhub.Variant(causal=True)
    return {
        "device": device,
        "extent": Extent(batch=_BATCH, qo_len=1, kv_len=128, tokens=_BATCH, kv_tokens=1024),
        "kv": "paged",
        "page_size": _PAGE_SIZE,
        "num_qo_heads": _HEADS,
        "num_kv_heads": _KV_HEADS,
        "head_dim_qk": _DIM,
        "head_dim_vo": _DIM,
        "variant": variant,
        "features": variant.features,
        **dtypes,
    }


def _import(code: str) -> float:
    """CPU time of a piece of code in a fresh process, after torch."""
    # The best: the first may have to write the bytecode.
    return min(float(run_python(_TIMED.format(code)).split()[-1]) for _ in range(3))


BUDGETS = (
    Budget(case="Plan.run", limit=1.0, unit="us", measure=_plan_run),
    Budget(case="BatchAttention.run, (K, V) tuple", limit=5.0, unit="us", measure=_batch_run_pair),
    Budget(case="BatchAttention.run, one cache tensor", limit=5.0, unit="us", measure=_batch_run),
    Budget(case="functional op, one output", limit=8.0, unit="us", measure=_functional),
    Budget(case="cold selection of 12", limit=200.0, unit="us", measure=_selection),
    Budget(case="import attnhub", limit=50.0, unit="ms", measure=lambda _: _import(_IMPORT)),
    Budget(
        case="import, attention, all plugins",
        limit=50.0,
        unit="ms",
        measure=lambda _: _import(_FIRST_USE),
    ),
)
