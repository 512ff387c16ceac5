"""The meaning of speculative verification, in plain PyTorch: chains and trees of draft tokens.

One rule serves both. A draft token t, drawn from q, is accepted against the target p with chance
``min(1, p[t] / q[t])``; after a rejection p becomes the normalised positive part of ``p - q``. The
tokens put out then follow the target distribution exactly, whatever the draft was.

Rows sum to 1 up to rounding; they are compared as given, not scaled. A value that is no
probability (NaN, inf, negative) is never accepted, so a request stops at the first such row it
needs. Where a row that its last token is drawn from is invalid, the whole request is refused:
tokens -1, counts 0. Other requests are not affected; values that are not needed are not looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attnhub.sampling.philox import CHAIN_STREAM, TREE_STREAM, philox_uniform
from attnhub.sampling.reference import inverse_transform, valid_rows

__all__ = ["chain_speculative", "tree_speculative"]


def chain_speculative(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Verified tokens int32 `[batch, n + 1]`, and accepted and emitted counts int32 `[batch]`.

    draft_probs: float `[batch, n, vocab]`, the distributions the drafts were drawn from.
    draft_token_ids: integer `[batch, n]` in [0, vocab); n may be 0.
    target_probs: float `[batch, n + 1, vocab]`. seed, offset: int64 `[batch]`.

    tokens holds the drafts up to the first rejection, there the correction (after n acceptances a
    draw from the last target row), then -1. emitted counts the drafts in that prefix; accepted
    counts every position that would pass if judged alone, so it is never smaller.
    Draw i judges position i, draw n selects the last token.

    >>> ids, seed = torch.tensor([[1]]), torch.tensor([0])
    >>> draft, target = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    >>> [x.tolist() for x in chain_speculative(draft, ids, target, seed, seed)]
    [[[0, -1]], [0], [0]]

    Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding",
    ICML 2023.
    """
    n = draft_token_ids.shape[1]
    uniform = philox_uniform(seed, offset, n + 1, stream=CHAIN_STREAM).double()
    ids = draft_token_ids.to(torch.int64)
    passed = _passes(_entries(target_probs[:, :n], ids), _entries(draft_probs, ids), uniform[:, :n])
    emitted = passed.to(torch.int32).cumprod(-1).sum(-1)

    p = _row(target_probs, emitted)
    q = _row(torch.nn.functional.pad(draft_probs, (0, 0, 0, 1)), emitted)
    stopped = (emitted < n)[:, None]
    last = inverse_transform(_residual(p, q).where(stopped, p), uniform[:, n])

    position = torch.arange(n + 1, device=ids.device)
    tokens = torch.nn.functional.pad(ids, (0, 1)).where(position < emitted[:, None], -1)
    tokens = last[:, None].where(position == emitted[:, None], tokens)
    served = last >= 0
    return (
        tokens.where(served[:, None], -1).to(torch.int32),
        passed.sum(-1).where(served, 0).to(torch.int32),
        emitted.where(served, 0).to(torch.int32),
    )


def tree_speculative(
    draft_token_ids: torch.Tensor,
    parents: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    seed: torch.Tensor,
    offset: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accepted node ids int32 `[batch, nodes]`, their number and the bonus token, int32 `[batch]`.

    draft_token_ids: integer `[batch, nodes]`. parents: integer `[batch, nodes]`: -1 for a child of
    the root, -2 for an unused node, else an earlier node; a node whose parent is none of these is
    never reached. target_probs: float `[batch, nodes + 1, vocab]`, row 0 after the root's context,
    row i + 1 after node i. draft_probs: float `[batch, nodes, vocab]`, the distribution node i was
    drawn from, siblings independently; None for drafts chosen without chance (such as the best k).
    seed, offset: int64 `[batch]`.

    From the root down, the children of the last accepted node are tried in node order; each
    rejection replaces the target by the residual, from which the bonus token is drawn when no child
    is left. The path is root first, padded with -1. Draw i judges node i, draw `nodes` the bonus.

    >>> ids, parents, seed = torch.tensor([[1, 0]]), torch.tensor([[-1, 0]]), torch.tensor([0])
    >>> target = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> [x.tolist() for x in tree_speculative(ids, parents, target, None, seed, seed)]
    [[[0, -1]], [1], [1]]

    Source: Miao et al., "SpecInfer", ASPLOS 2024 (residual per rejected sibling).
    """
    batch, num_nodes = draft_token_ids.shape
    uniform = philox_uniform(seed, offset, num_nodes + 1, stream=TREE_STREAM).double()
    paths = torch.full((batch, num_nodes), -1, dtype=torch.int32, device=parents.device)
    lasts = torch.empty_like(target_probs[:, 0], dtype=torch.float64)
    for b in range(batch):
        tree = _Tree(
            token_ids=draft_token_ids[b].tolist(),
            parents=parents[b].tolist(),
            target=target_probs[b],
            draft=None if draft_probs is None else draft_probs[b],
        )
        path, lasts[b] = _walk(tree, uniform[b])
        paths[b, : len(path)] = torch.tensor(path, dtype=torch.int32, device=paths.device)
    bonus = inverse_transform(lasts, uniform[:, num_nodes])
    paths = paths.where(bonus[:, None] >= 0, -1)
    return paths, (paths >= 0).sum(-1).to(torch.int32), bonus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """The draft tree of one request."""

    token_ids: list[int]
    parents: list[int]
    target: torch.Tensor  # [nodes + 1, vocab]
    draft: torch.Tensor | None  # [nodes, vocab]

    def draft_row(self, node: int) -> torch.Tensor:
        """What the node's token was drawn from: a point mass if it was chosen without chance."""
        if self.draft is not None:
            return self.draft[node].double()
        row = torch.zeros_like(self.target[0], dtype=torch.float64)
        row[self.token_ids[node]] = 1.0
        return row


def _walk(tree: _Tree, uniform: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """Accepted nodes, and the float64 row `[vocab]` the bonus token is to be drawn from."""
    path: list[int] = []
    last = -1
    p = tree.target[0].double()
    # Parents precede their children, so one sweep over the nodes meets every level in turn.
    for node, token in enumerate(tree.token_ids):
        if tree.parents[node] != last:
            continue
        q = tree.draft_row(node)
        if _passes(p[token], q[token], uniform[node]):
            path.append(node)
            last = node
            p = tree.target[node + 1].double()
        else:
            p = _residual(p[None], q[None])[0]
    return path, p


def _passes(p: torch.Tensor, q: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Whether a draft of probability q is accepted at target probability p, elementwise."""
    return (uniform * q < p) & (q >= 0) & (p < math.inf)


def _residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Normalised positive part of p - q, float64 `[batch, vocab]`; NaN where p or q is invalid."""
    rest = (p - q).clamp(min=0.0)
    mass = rest.sum(-1, keepdim=True)
    # Nothing is left only if rounding rejected a token that p and q agree on: then p still stands.
    rest = (rest / mass).where(mass > 0, p)
    return rest.where((valid_rows(p) & valid_rows(q))[:, None], math.nan)


def _entries(probs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """probs[b, i, ids[b, i]] in float64, `[batch, n]`."""
    return probs.gather(-1, ids[..., None])[..., 0].double()


def _row(probs: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """probs[b, position[b]] in float64, `[batch, vocab]`."""
    return probs[torch.arange(len(probs), device=probs.device), position].double()
