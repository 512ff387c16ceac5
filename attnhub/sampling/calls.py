"""Calls of the ops that draw from one row, for any of their problems, and the rows of all calls.

The draws of one call come from two requests that alternate, with rows and settings of their own, so
that a neighbour's are noticed. Random numbers differ between requests, but neither seeds nor
offsets alone tell all of them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.core.calls import Call, Calls, spaced
from attnhub.core.device import Device
from attnhub.sampling import draw, reference
from attnhub.sampling.parameters import Order, SamplingParams
from attnhub.sampling.problem import SampleLogitsProblem, SampleProblem

_DRAWS = 20_000
#: How many probabilities one call may hold; a large vocabulary is drawn from less often.
_ENTRIES = {"cpu": 1 << 19, "cuda": 1 << 27}
#: The likeliest tokens; what they leave is spread over every second of the others. No filter below
#: has its boundary near a sum or a ratio of them.
_LIKELY = (0.28, 0.22, 0.16, 0.12, 0.09, 0.06, 0.03, 0.02)
#: Setting -> its number for all requests, and those of the two requests that alternate.
_SETTINGS: Mapping[str, tuple[float, tuple[float, float]]] = {
    "temperature": (2.0, (0.5, 0.0)),
    "top_k": (4, (4, 2)),
    "top_p": (0.8, (0.8, 0.6)),
    "min_p": (0.25, (0.25, 0.5)),
}
_NUM_REFUSED = 4


def num_draws(entries: int, device: torch.device) -> int:
    """How many draws to make where each holds ``entries`` probabilities; an even number."""
    return max(2, min(_DRAWS, _ENTRIES[device.type] // entries) // 2 * 2)


def random_numbers(count: int, device: torch.device) -> dict[str, Tensor]:
    """Seed and offset of ``count`` requests, no two of which have both in common."""
    which = torch.arange(count, dtype=torch.int64, device=device)
    return {"seed": which // 128, "offset": which % 128}


def two_rows(vocab: int) -> Tensor:
    """Two distributions, float64 ``[2, vocab]``: the likeliest tokens lie at and between the ends.

    They need not sum to 1, and every second of the other tokens has probability 0.
    """
    likely = torch.linspace(0, vocab - 1, len(_LIKELY)).round().long().unique()
    rest = torch.arange(0, vocab, 2)
    rows = torch.zeros(2, vocab, dtype=torch.float64)
    rows[:, rest] = (1 - sum(_LIKELY)) / len(rest)
    shares = torch.tensor(_LIKELY[: len(likely)], dtype=torch.float64)
    rows[0, likely], rows[1, likely] = shares, 3 * shares.flip(0)
    return rows


def refused_rows(vocab: int, *, logits: bool) -> Tensor:
    """Rows that cannot be sampled, float64 ``[4, vocab]``."""
    rows = two_rows(vocab)[:1].repeat(_NUM_REFUSED, 1)
    if logits:
        rows = rows.log()
    nothing = -math.inf if logits else 0.0
    rows[0, -1], rows[1], rows[2, vocab // 2] = math.nan, nothing, math.inf
    rows[3, 0] = math.nan if logits else -1.0
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draws:
    """One call: ``which [requests]`` of ``rows`` each request draws from, the refused ones first.

    ``rows`` are those of the two requests that alternate, then those that are refused.
    """

    problem: SampleProblem
    rows: Tensor
    which: Tensor
    settings: Mapping[str, Any]

    def run(self) -> dict[str, Tensor]:
        """Tokens of the first and of the second request; 0 for each refusal."""
        p, count = self.problem, len(self.which)
        x = self.rows if p.indices else self.rows[self.which]
        tokens = self._draw(
            x if p.contiguous else spaced(x),
            {name: _per_request(value, self.which) for name, value in self.settings.items()},
            indices=self.which.int() if p.indices else None,
            **random_numbers(count, x.device),
        )
        drawn, refused = tokens[_NUM_REFUSED:], tokens[:_NUM_REFUSED] + 1
        return {"first": drawn[::2], "second": drawn[1::2], "refused": refused}

    def _draw(self, x: Tensor, settings: dict[str, Any], **options: Any) -> Tensor:
        p, order = self.problem, self._order()
        if isinstance(p, SampleLogitsProblem):
            return draw.sample(x, SamplingParams(order=order, **settings), **options)
        if p.top_k and p.top_p:
            return draw.top_k_top_p_sample_from_probs(x, **settings, order=order, **options)
        function: Any = draw.sample_from_probs
        if settings:  # there is a function for each single filter
            (name,) = settings
            function = getattr(draw, f"{name}_sample")
        return function(x, **settings, **options)

    def _order(self) -> Order:
        return "joint" if self.problem.joint else "top_k_first"

    def expect(self) -> dict[str, Tensor]:
        """The exact distribution of each output; a refusal is certain."""
        return {"first": self._exact(0), "second": self._exact(1), "refused": torch.ones(1)}

    def _exact(self, request: int) -> Tensor:
        settings = {
            name: value[request] if isinstance(value, tuple) else value
            for name, value in self.settings.items()
        }
        row, heat = self.rows[request][None], settings.pop("temperature", 1.0)
        if isinstance(self.problem, SampleLogitsProblem):
            row = reference.softmax(row, heat)
        kept = reference.filter_probs(row, **settings, joint=self.problem.joint)[0].double()
        return kept / kept.sum()


def _per_request(value: Any, which: Tensor) -> Any:
    """A number as it is; a pair as a tensor of as many settings as there are requests."""
    if not isinstance(value, tuple):
        return value
    dtype = torch.int32 if isinstance(value[0], int) else torch.float32
    return torch.tensor(value, dtype=dtype, device=which.device).repeat(len(which) // 2)


def _build(
    problem: SampleProblem, device: torch.device, generator: torch.Generator
) -> Iterator[Call]:
    """Numbers for all requests, then tensors of one for each, then no requests."""
    logits, dtype = isinstance(problem, SampleLogitsProblem), getattr(problem, "dtype", "float32")
    rows = two_rows(problem.vocab)
    rows = torch.cat([rows.log() if logits else rows, refused_rows(problem.vocab, logits=logits)])
    rows = rows.to(device, getattr(torch, dtype))
    draws = num_draws(problem.vocab, device)
    which = torch.tensor([*range(2, len(rows)), *[0, 1] * (draws // 2)], device=device)
    used = {name: both for name, both in _SETTINGS.items() if getattr(problem, name, False)}
    numbers = {name: number for name, (number, _) in used.items()}
    tensors = {name: pair for name, (_, pair) in used.items()}
    for name, settings, requests in (
        ("numbers", numbers, which),
        ("tensors", tensors, which),
        ("no requests", tensors, which[:0]),
    ):
        if settings is numbers and problem.vocab <= numbers.get("top_k", 0):
            continue  # a number that keeps the whole row is no filter
        draws_of = _Draws(problem=problem, rows=rows, which=requests, settings=settings)
        yield Call(name=name, run=draws_of.run, expect=draws_of.expect)


def _logits_clashes(facts: Mapping[str, Any], _: Device) -> set[str]:
    """Only two filters have an order."""
    both = facts["top_k"] and facts["top_p"]
    return {"joint", "top_k", "top_p"} if facts["joint"] and not both else set()


def _probs_clashes(facts: Mapping[str, Any], device: Device) -> set[str]:
    """No function has min_p and another filter."""
    found = _logits_clashes(facts, device)
    if facts["min_p"] and (facts["top_k"] or facts["top_p"]):
        found |= {"min_p", "top_k", "top_p"}
    return found


#: A vocabulary so small that a histogram of few draws is sharp.
BASE = {"vocab": 17}
calls = {
    "sampling.sample": Calls(build=_build, base=BASE, clashes=_probs_clashes),
    "sampling.sample_logits": Calls(
        build=_build, base={**BASE, "dtype": "float32"}, clashes=_logits_clashes
    ),
}
