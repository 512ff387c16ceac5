"""Speculative verification: which draft tokens a target model accepts, and the token after them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.sampling import parameters as given
from attnhub.sampling.problem import ChainSpeculativeProblem, TreeSpeculativeProblem


def _key(draft_token_ids: Tensor, target_probs: Tensor, draft_probs: Tensor | None) -> Any:
    batch, drafts = draft_token_ids.shape
    vocab = target_probs.shape[2]
    contiguous = _contiguous(target_probs, draft_probs)
    return target_probs.device, bucket(batch), drafts, vocab, contiguous, draft_probs is None


def _facts(target_probs: Tensor, draft_probs: Tensor | None) -> dict[str, Any]:
    return {
        "device": devices.describe(target_probs.device),
        "extent": Extent(tokens=target_probs.shape[0]).bucketed(),
        "vocab": target_probs.shape[2],
        "contiguous": _contiguous(target_probs, draft_probs),
    }


def _contiguous(target_probs: Tensor, draft_probs: Tensor | None) -> bool:
    return target_probs.is_contiguous() and (draft_probs is None or draft_probs.is_contiguous())


def _tree_problem(
    draft_token_ids: Tensor,
    _parents: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    *_: Tensor,
) -> TreeSpeculativeProblem:
    return TreeSpeculativeProblem(
        **_facts(target_probs, draft_probs),
        num_nodes=draft_token_ids.shape[1],
        draft_probs=draft_probs is not None,
    )


_chain = FunctionalOp(
    "sampling.chain_speculative",
    "(Tensor draft_probs, Tensor draft_token_ids, Tensor target_probs, Tensor seed, "
    "Tensor offset, Tensor(a!) tokens, Tensor(b!) accepted, Tensor(c!) emitted) -> ()",
    key=lambda draft, ids, target, *_: _key(ids, target, draft),
    problem=lambda draft, ids, target, *_: ChainSpeculativeProblem(
        **_facts(target, draft), num_drafts=ids.shape[1]
    ),
)
_tree = FunctionalOp(
    "sampling.tree_speculative",
    "(Tensor draft_token_ids, Tensor parents, Tensor target_probs, Tensor? draft_probs, "
    "Tensor seed, Tensor offset, Tensor(a!) path, Tensor(b!) num_accepted, Tensor(c!) bonus) "
    "-> ()",
    key=lambda ids, _, target, draft, *__: _key(ids, target, draft),
    problem=_tree_problem,
)


def chain_speculative_sampling(
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Verified tokens of a chain of drafts; they follow the target distribution exactly.

    Args:
        draft_probs: float32 ``[batch, n, vocab]``, what the drafts were drawn from; n may be 0.
        draft_token_ids: int32 ``[batch, n]`` in [0, vocab); device ids are not looked at.
        target_probs: float32 ``[batch, n + 1, vocab]``. Rows must sum to 1: they are compared as
            given.
        generator: where fresh seeds come from; the default generator of the device if None.
        seed: int64 ``[batch]``, given with ``offset`` and instead of ``generator``.
        offset: int64 ``[batch]``, to be advanced by one each step.

    Returns:
        tokens int32 ``[batch, n + 1]``: the drafts up to the first rejection, there the token that
        corrects it (after n acceptances one from the last target row), then -1; accepted int32
        ``[batch]``: drafts that would pass if each were judged alone; emitted int32 ``[batch]``:
        drafts in the accepted prefix. A request whose last token cannot be drawn (NaN, inf,
        negative, all zero) gives tokens -1 and counts 0.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a draft id out of range.

    Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
    decoding" (2023).

    Example::

        tokens, accepted, emitted = attnhub.sampling.chain_speculative_sampling(
            draft_probs, draft_token_ids, target_probs, seed=seed, offset=offset
        )
    """
    batch, n, vocab = _check_target(draft_token_ids, target_probs)
    _check_probs(draft_probs, "draft_probs", (batch, n, vocab), target_probs)
    _check_ids(draft_token_ids, vocab, None)
    device = target_probs.device
    seed, offset = given.random_state(batch, device, generator, seed, offset)
    tokens = torch.empty(batch, n + 1, dtype=torch.int32, device=device)
    accepted = torch.empty(batch, dtype=torch.int32, device=device)
    emitted = torch.empty(batch, dtype=torch.int32, device=device)
    _chain(draft_probs, draft_token_ids, target_probs, seed, offset, tokens, accepted, emitted)
    return tokens, accepted, emitted


def tree_speculative_sampling(
    draft_token_ids: Tensor,
    parents: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The accepted path through a tree of drafts, and the token after it.

    From the root down, the children of the last accepted node are tried in node order; what comes
    out follows the target distribution exactly.

    Args:
        draft_token_ids: int32 ``[batch, nodes]`` in [0, vocab); device ids are not looked at.
        parents: int32 ``[batch, nodes]``: an earlier node, -1 for a child of the root, -2 for an
            unused node; device values are not looked at.
        target_probs: float32 ``[batch, nodes + 1, vocab]``: row 0 after the root's context, row
            i + 1 after node i. Rows must sum to 1.
        draft_probs: float32 ``[batch, nodes, vocab]``: what node i was drawn from, siblings
            independently. None: the drafts were chosen without chance (such as the best k).
        generator: where fresh seeds come from; the default generator of the device if None.
        seed: int64 ``[batch]``, given with ``offset`` and instead of ``generator``.
        offset: int64 ``[batch]``, to be advanced by one each step.

    Returns:
        path int32 ``[batch, nodes]``: accepted nodes, root first, then -1; num_accepted int32
        ``[batch]``; bonus int32 ``[batch]``, the token after the path. A request whose bonus cannot
        be drawn gives path -1, count 0 and bonus -1.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride, or a draft id or a parent out of
            range.

    Source: Miao et al., "SpecInfer" (2024).

    Example::

        path, num_accepted, bonus = attnhub.sampling.tree_speculative_sampling(
            draft_token_ids, parents, target_probs, seed=seed, offset=offset
        )
    """
    batch, nodes, vocab = _check_target(draft_token_ids, target_probs)
    if draft_probs is not None:
        _check_probs(draft_probs, "draft_probs", (batch, nodes, vocab), target_probs)
    _check_integers(parents, "parents", target_probs)
    if parents.shape != draft_token_ids.shape:
        check.shape(parents, "parents", (batch, nodes))
    _check_parents(parents)
    _check_ids(draft_token_ids, vocab, parents)
    device = target_probs.device
    seed, offset = given.random_state(batch, device, generator, seed, offset)
    path = torch.empty(batch, nodes, dtype=torch.int32, device=device)
    num_accepted = torch.empty(batch, dtype=torch.int32, device=device)
    bonus = torch.empty(batch, dtype=torch.int32, device=device)
    _tree(
        draft_token_ids,
        parents,
        target_probs,
        draft_probs,
        seed,
        offset,
        path,
        num_accepted,
        bonus,
    )
    return path, num_accepted, bonus


def _check_target(draft_token_ids: Tensor, target_probs: Tensor) -> tuple[int, int, int]:
    """Batch, drafts and vocab, after checks of the two tensors that state them."""
    check.is_tensor(target_probs, "target_probs")
    _check_integers(draft_token_ids, "draft_token_ids", target_probs)
    if draft_token_ids.dim() != 2:
        check.shape(draft_token_ids, "draft_token_ids", ("batch", "drafts"))
    if target_probs.dim() != 3 or target_probs.shape[2] == 0:
        check.fail(
            f"target_probs has shape {list(target_probs.shape)}, "
            "needs [batch, drafts + 1, vocab] with vocab >= 1"
        )
    batch, drafts = draft_token_ids.shape
    vocab = target_probs.shape[2]
    _check_probs(target_probs, "target_probs", (batch, drafts + 1, vocab), target_probs)
    return batch, drafts, vocab


def _check_integers(x: Tensor, name: str, like: Tensor) -> None:
    check.is_tensor(x, name)
    if x.dtype is not torch.int32:
        check.dtype(x, name, (torch.int32,))
    if x.device != like.device:
        check.device(x, name, like.device, "target_probs")
    if not x.is_contiguous():
        check.fail(f"{name} is not contiguous; call {name}.contiguous()")


def _check_probs(x: Tensor, name: str, shape: tuple[int, int, int], like: Tensor) -> None:
    check.is_tensor(x, name)
    if x.dtype is not torch.float32:
        check.dtype(x, name, (torch.float32,))
    if x.shape != shape:
        check.shape(x, name, shape)
    if x.device != like.device:
        check.device(x, name, like.device, "target_probs")
    check.last_contiguous(x, name)
    check.no_grad(x)


def _check_parents(parents: Tensor) -> None:
    """Host parents by value: each comes before its child, so that no tree has a cycle."""
    if parents.device.type != "cpu" or torch.compiler.is_compiling():
        return
    nodes = parents.shape[1]
    bad = (parents < -2) | (parents >= torch.arange(nodes, device=parents.device))
    if bad.any():
        b, node = bad.nonzero()[0].tolist()
        check.fail(
            f"parents[{b}, {node}] is {int(parents[b, node])}, needs -2 (unused), -1 (child of the "
            f"root) or a node before {node}; order the nodes so that parents come first"
        )


def _check_ids(ids: Tensor, vocab: int, parents: Tensor | None) -> None:
    """Host ids by value, but for unused nodes, which may hold anything."""
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    used = ids if parents is None else ids.where(parents > -2, 0)
    metadata.in_range(used.flatten(), "draft_token_ids", 0, vocab, "tokens, counted row by row")
