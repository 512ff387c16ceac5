"""Calls of speculative verification for any of its problems, with the exact distribution.

An outcome is where a request stops and the token it draws there: outcome ``stop * vocab + token``.
Whatever else a call returns must follow from it; where it does not, the outcome is -1, which is
impossible. As in :mod:`attnhub.sampling.calls`, two requests alternate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnhub.core.calls import Call, Calls, spaced
from attnhub.sampling import speculative
from attnhub.sampling.calls import BASE, num_draws, random_numbers
from attnhub.sampling.problem import ChainSpeculativeProblem, TreeSpeculativeProblem

#: The reference walks through its trees one by one.
_MOST_CHAINS, _MOST_TREES = 20_000, 1024
_NUM_REFUSED = 2

_Problem = ChainSpeculativeProblem | TreeSpeculativeProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """``ids [n]``, ``parents [n]``, ``target [n + 1, vocab]``, ``draft [n, vocab]``.

    ``draft`` is a one-hot row where a draft was chosen without chance. A chain is a tree in which
    each node has one child.
    """

    ids: Tensor
    parents: Tensor
    target: Tensor
    draft: Tensor

    @classmethod
    def random(cls, parents: Tensor, vocab: int, generator: torch.Generator) -> _Request:
        """Drafts drawn from rows that resemble the target's."""
        logits = 1.5 * torch.randn(len(parents) + 1, vocab, generator=generator)
        above = logits[(parents + 1).clamp(min=0)]
        noise = torch.randn(above.shape, generator=generator)
        uniform = torch.rand(above.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
        ids = (above + noise - (-uniform.log()).log()).argmax(-1)
        return cls(
            ids=ids.masked_fill(parents == -2, -7).int(),  # an unused node may hold anything
            parents=parents,
            target=logits.softmax(-1),
            draft=(above + noise).softmax(-1),
        )

    def chosen(self) -> _Request:
        """The same drafts, as if no chance had been in them."""
        point = torch.nn.functional.one_hot(self.ids.clamp(min=0).long(), self.target.shape[1])
        return replace(self, draft=point.float())

    def path(self, node: int) -> list[int]:
        """The nodes from the root, which is none itself, to this one."""
        return [] if node < 0 else [*self.path(int(self.parents[node])), node]

    def outcomes(self) -> Tensor:
        """The probability of each, float64 ``[(n + 1) * vocab]``; stop 0 is the root.

        Children are tried in order, so whoever comes to a node and tries the next child has seen
        all earlier ones rejected: one probability and one residual per node say everything.
        """
        target, draft = self.target.double(), self.draft.double()
        states = {-1: (1.0, target[0])}
        for node, parent in enumerate(self.parents.tolist()):
            if parent not in states:
                continue
            chance, p = states[parent]
            q, token = draft[node], int(self.ids[node])
            accepted = min(1.0, float(p[token] / q[token]))
            rest = (p - q).clamp(min=0)
            states[node] = (chance * accepted, target[node + 1])
            states[parent] = (chance * (1 - accepted), rest / rest.sum() if rest.any() else p)
        found = torch.zeros_like(target)
        for node, (chance, p) in states.items():
            found[node + 1] = chance * p / p.sum()
        return found.flatten()

    def passing(self) -> Tensor:
        """The distribution of how many drafts of a chain pass, each judged alone."""
        found = torch.ones(1, dtype=torch.float64)
        for i, token in enumerate(self.ids.tolist()):
            accepted = min(1.0, float(self.target[i, token].double() / self.draft[i, token]))
            found = torch.nn.functional.pad(found, (1, 1))
            found = found[1:] * (1 - accepted) + found[:-1] * accepted
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Requests that are refused, since their target is NaN, and then two others in turn."""

    pair: tuple[_Request, _Request]
    count: int
    contiguous: bool
    device: torch.device
    num_refused: int = _NUM_REFUSED

    def stacked(self, name: str) -> Tensor:
        """One tensor of all requests."""
        first, second = self.pair
        refused = replace(first, target=torch.full_like(first.target, math.nan))
        requests = torch.stack([getattr(r, name) for r in (first, second, refused)]).to(self.device)
        which = torch.tensor([2] * self.num_refused + [0, 1] * (self.count // 2), dtype=torch.int64)
        found = requests[which.to(self.device)]
        return spaced(found) if found.is_floating_point() and not self.contiguous else found

    def rng(self) -> dict[str, Any]:
        """Their random numbers."""
        return random_numbers(self.count + self.num_refused, self.device)

    def told_apart(self, name: str, drawn: Tensor) -> dict[str, Tensor]:
        """What each of the two drew."""
        drawn = drawn[self.num_refused :]
        return {f"{name}, first": drawn[::2], f"{name}, second": drawn[1::2]}

    def outcomes(self, stop: Tensor, token: Tensor, sound: Tensor) -> dict[str, Tensor]:
        """Outcomes by request, -1 where a call's outputs are not ``sound``."""
        vocab = self.pair[0].target.shape[1]
        sound = sound & (token >= 0) & (token < vocab)
        return self.told_apart("outcome", (stop * vocab + token).where(sound, -1))

    def nobody(self) -> _Batch:
        """The same without requests."""
        return replace(self, count=0, num_refused=0)

    def expect(self) -> dict[str, Tensor]:
        """What all calls have in common."""
        first, second = (request.outcomes() for request in self.pair)
        return {"outcome, first": first, "outcome, second": second, "refused": torch.ones(1)}


def _batch(
    parents: Tensor, problem: _Problem, most: int, device: torch.device, generator: torch.Generator
) -> _Batch:
    first, second = (_Request.random(parents, problem.vocab, generator) for _ in range(2))
    draws = num_draws((len(parents) + 1) * problem.vocab, device)
    return _Batch(
        pair=(first, second),
        count=min(draws, most),
        contiguous=problem.contiguous,
        device=device,
    )


def _chain(
    problem: ChainSpeculativeProblem, device: torch.device, generator: torch.Generator
) -> list[Call]:
    n = problem.num_drafts
    batch = _batch(torch.arange(n) - 1, problem, _MOST_CHAINS, device, generator)

    def run(batch: _Batch = batch) -> dict[str, Tensor]:
        ids = batch.stacked("ids")
        tokens, accepted, emitted = speculative.chain_speculative_sampling(
            batch.stacked("draft"), ids, batch.stacked("target"), **batch.rng()
        )
        stop, place = emitted.long().clamp(0, n)[:, None], torch.arange(n + 1, device=device)
        last = tokens.gather(1, stop)
        drafts = torch.nn.functional.pad(ids, (0, 1))
        should = drafts.where(place < stop, last.where(place == stop, -1))
        sound = (tokens == should).all(1) & (emitted == stop[:, 0])
        refused = torch.cat([tokens + 1, accepted[:, None], emitted[:, None]], 1)
        return {
            **batch.outcomes(stop[:, 0], last[:, 0], sound),
            **batch.told_apart("accepted", accepted),
            "refused": refused[: batch.num_refused].flatten(),
        }

    def expect() -> dict[str, Tensor]:
        first, second = (request.passing() for request in batch.pair)
        return {**batch.expect(), "accepted, first": first, "accepted, second": second}

    return [
        Call(name="a chain", run=run, expect=expect),
        Call(name="no requests", run=lambda: run(batch.nobody()), expect=expect),
    ]


def _tree(
    problem: TreeSpeculativeProblem, device: torch.device, generator: torch.Generator
) -> list[Call]:
    """Two children a node, as far as there are nodes; the last of several nodes is unused."""
    n = problem.num_nodes
    parents = ((torch.arange(n) - 2) // 2).clamp(min=-1)
    if n > 1:
        parents[-1] = -2
    batch = _batch(parents, problem, _MOST_TREES, device, generator)
    if not problem.draft_probs:
        batch = replace(batch, pair=(batch.pair[0].chosen(), batch.pair[1].chosen()))
    # Row 0 is the root's; the unused node has one too, which nothing sound leads to.
    paths = torch.full((n + 1, n), -1, dtype=torch.int32)
    for node in range(n):
        path = batch.pair[0].path(node)
        paths[node + 1, : len(path)] = torch.tensor(path)
    paths = paths.to(device)

    def run(batch: _Batch = batch) -> dict[str, Tensor]:
        path, accepted, bonus = speculative.tree_speculative_sampling(
            batch.stacked("ids"),
            batch.stacked("parents").int(),
            batch.stacked("target"),
            batch.stacked("draft") if problem.draft_probs else None,
            **batch.rng(),
        )
        last = path.gather(1, (accepted.long() - 1).clamp(0, n - 1)[:, None])[:, 0]
        stop = (last.where(accepted > 0, -1) + 1).long().clamp(0, n)
        sound = (path == paths[stop]).all(1) & (accepted == (paths[stop] >= 0).sum(1))
        refused = torch.cat([path + 1, accepted[:, None], bonus[:, None] + 1], 1)
        return {
            **batch.outcomes(stop, bonus, sound),
            "refused": refused[: batch.num_refused].flatten(),
        }

    return [
        Call(name="a tree", run=run, expect=batch.expect),
        Call(name="no requests", run=lambda: run(batch.nobody()), expect=batch.expect),
    ]


calls = {
    "sampling.chain_speculative": Calls(build=_chain, base={**BASE, "num_drafts": 3}),
    "sampling.tree_speculative": Calls(build=_tree, base={**BASE, "num_nodes": 4}),
}
