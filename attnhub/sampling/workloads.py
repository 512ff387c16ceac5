"""Inputs of the sampling ops: small ones for tests, a large vocabulary for benchmarks.

In the small cases of the ops that draw, all requests share one distribution, so that the outcomes
of two backends can be compared as histograms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.sampling import calls as draw_calls
from attnhub.sampling import draw, speculative, speculative_calls, transform, transform_calls
from attnhub.sampling.parameters import SamplingParams

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """``sigma`` is the spread of the logits: 0.1 is flat, where top-p keeps most of the row."""

    batch: int
    vocab: int
    sigma: float = 3.0
    tag: str = "h200"

    def logits(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Float32 ``[batch, vocab]``; one row repeated if small."""
        rows = 1 if self.tag == "small" else self.batch
        logits = _normal((rows, self.vocab), device, generator) * self.sigma
        return logits.expand(self.batch, -1).contiguous()


_SIZES = (
    _Size(batch=2048, vocab=111, tag="small"),  # no multiple of a vector
    _Size(batch=1, vocab=128256),
    _Size(batch=128, vocab=128256),
    _Size(batch=128, vocab=128256, sigma=0.1),
)

_FROM_PROBS: dict[str, Call] = {
    "plain": draw.sample_from_probs,
    "top_k": lambda x, **rng: draw.top_k_sample(x, 50, **rng),
    "top_p": lambda x, **rng: draw.top_p_sample(x, 0.9, **rng),
    "min_p": lambda x, **rng: draw.min_p_sample(x, 0.05, **rng),
    "top_k_top_p": lambda x, **rng: draw.top_k_top_p_sample_from_probs(x, 50, 0.9, **rng),
    "joint": lambda x, **rng: draw.top_k_top_p_sample_from_probs(x, 50, 0.9, order="joint", **rng),
}
_ENGINE = SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
_FROM_LOGITS: dict[str, Call] = {
    "plain": draw.sample_from_logits,
    "greedy": lambda x, **rng: draw.sample_from_logits(x, temperature=0.0, **rng),
    "top_k_top_p": lambda x, **rng: draw.sample(x, _ENGINE, **rng),
    "min_p": lambda x, **rng: draw.sample(x, SamplingParams(min_p=0.05), **rng),
}


def _case(size: _Size, name: str, call: Call, *, from_probs: bool, draws: bool) -> Workload:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        x = size.logits(device, generator)
        x = x.softmax(-1) if from_probs else x
        rng = _rng(size.batch, device) if draws else {}
        return lambda: call(x, **rng)

    entries = size.batch * size.vocab
    return Workload(
        name=f"{size.batch}x{size.vocab}-sigma{size.sigma:g}-{name}",
        make=make,
        work=Work(flops=4.0 * entries, bytes=float(4 * entries * (1 if draws else 2))),
        tags=frozenset({size.tag}),
        facts={"batch": size.batch, "vocab": size.vocab, "sigma": size.sigma, "call": name},
    )


def _cases(calls: dict[str, Call], *, from_probs: bool, draws: bool) -> tuple[Workload, ...]:
    return tuple(
        _case(size, name, call, from_probs=from_probs, draws=draws)
        for size in _SIZES
        for name, call in calls.items()
    )


def _rng(batch: int, device: torch.device) -> dict[str, Any]:
    """Fixed, so that one backend gives the same tokens in every run."""
    seed = torch.arange(batch, dtype=torch.int64, device=device)
    return {"seed": seed, "offset": torch.zeros_like(seed)}


def _normal(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(device)


sample = _cases(_FROM_PROBS, from_probs=True, draws=True)
sample_logits = _cases(_FROM_LOGITS, from_probs=False, draws=True)
softmax = _cases(
    {"plain": transform.softmax, "hot": lambda x: transform.softmax(x, temperature=1.5)},
    from_probs=False,
    draws=False,
)
top_k_renorm = _cases({"50": lambda x: transform.top_k_renorm(x, 50)}, from_probs=True, draws=False)
top_p_renorm = _cases(
    {"0.9": lambda x: transform.top_p_renorm(x, 0.9)}, from_probs=True, draws=False
)
top_k_mask_logits = _cases(
    {"50": lambda x: transform.top_k_mask_logits(x, 50)}, from_probs=False, draws=False
)
top_k = _cases({"50": lambda x: transform.top_k(x, 50)}, from_probs=False, draws=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafts:
    """Rows that draft and target model give for ``num`` drafts; one request repeated if small."""

    batch: int
    num: int
    vocab: int
    tag: str = "h200"

    def rows(self, count: int, device: torch.device, generator: torch.Generator) -> Tensor:
        """Probabilities ``[batch, count, vocab]``."""
        requests = 1 if self.tag == "small" else self.batch
        logits = _normal((requests, count, self.vocab), device, generator)
        return logits.softmax(-1).expand(self.batch, -1, -1).contiguous()

    def workload(self, make: Callable[..., Callable[[], Any]], rows_read: int) -> Workload:
        """A case whose calls read ``rows_read`` whole rows a request."""

        def bound(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
            return make(self, device, generator)

        entries = self.batch * rows_read * self.vocab
        return Workload(
            name=f"{self.batch}x{self.num}x{self.vocab}",
            make=bound,
            work=Work(flops=4.0 * entries, bytes=4.0 * entries),
            tags=frozenset({self.tag}),
            facts={"batch": self.batch, "drafts": self.num, "vocab": self.vocab},
        )


def _chain(size: _Drafts, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
    draft = size.rows(size.num, device, generator)
    target = size.rows(size.num + 1, device, generator)
    rng = _rng(size.batch, device)
    flat = draft.flatten(0, 1)
    seed = torch.arange(len(flat), dtype=torch.int64, device=device)
    # Drawn from the draft rows, as the method supposes, but from other seeds than the call's.
    ids = draw.sample_from_probs(flat, seed=seed, offset=torch.ones_like(seed))
    ids = ids.view(size.batch, size.num)
    return lambda: speculative.chain_speculative_sampling(draft, ids, target, **rng)


def _tree(size: _Drafts, device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
    """A binary tree whose siblings are the two likeliest tokens of a random row."""
    target = size.rows(size.num + 1, device, generator)
    best = size.rows(size.num, device, generator)[:, ::2].topk(2).indices.flatten(1)
    ids = best[:, : size.num].to(torch.int32).contiguous()
    nodes = torch.arange(size.num, dtype=torch.int32, device=device)
    parents = ((nodes - 2) // 2).clamp(min=-1).expand(size.batch, -1).contiguous()
    rng = _rng(size.batch, device)
    return lambda: speculative.tree_speculative_sampling(ids, parents, target, **rng)


chain_speculative = (
    _Drafts(batch=2048, num=3, vocab=17, tag="small").workload(_chain, 2),
    _Drafts(batch=8, num=5, vocab=128256).workload(_chain, 2),
    _Drafts(batch=64, num=5, vocab=128256).workload(_chain, 2),
)
tree_speculative = (
    _Drafts(batch=256, num=6, vocab=17, tag="small").workload(_tree, 1),
    _Drafts(batch=8, num=30, vocab=128256).workload(_tree, 1),
    _Drafts(batch=64, num=14, vocab=128256).workload(_tree, 1),
)


calls = {**draw_calls.calls, **transform_calls.calls, **speculative_calls.calls}
