"""``attnhub.sampling`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.reference import Reference
from attnhub.sampling import reference, speculative_reference
from attnhub.sampling.reference import PerRow


def _sample(
    probs: Tensor,
    indices: Tensor | None,
    seed: Tensor,
    offset: Tensor,
    top_k: Tensor | int | None,
    top_p: PerRow | None,
    min_p: PerRow | None,
    joint: bool,  # noqa: FBT001 - the order of the op's schema
    out: Tensor,
) -> None:
    rows = probs if indices is None else probs.index_select(0, indices)
    rows = reference.filter_probs(rows, top_k=top_k, top_p=top_p, min_p=min_p, joint=joint)
    out.copy_(reference.sample_from_probs(rows, seed, offset))


def _sample_logits(
    logits: Tensor,
    indices: Tensor | None,
    seed: Tensor,
    offset: Tensor,
    temperature: PerRow | None,
    top_k: Tensor | int | None,
    top_p: PerRow | None,
    min_p: PerRow | None,
    joint: bool,  # noqa: FBT001 - the order of the op's schema
    out: Tensor,
) -> None:
    rows = logits if indices is None else logits.index_select(0, indices)
    probs = reference.softmax(rows, 1.0 if temperature is None else temperature)
    _sample(probs, None, seed, offset, top_k, top_p, min_p, joint, out)


def _softmax(logits: Tensor, temperature: PerRow | None, out: Tensor) -> None:
    out.copy_(reference.softmax(logits, 1.0 if temperature is None else temperature))


def _top_k_renorm(probs: Tensor, top_k: Tensor | int, out: Tensor) -> None:
    out.copy_(reference.top_k_renorm(probs, top_k))


def _top_p_renorm(probs: Tensor, top_p: PerRow, out: Tensor) -> None:
    out.copy_(reference.top_p_renorm(probs, top_p))


def _top_k_mask_logits(logits: Tensor, top_k: Tensor | int, out: Tensor) -> None:
    out.copy_(reference.top_k_mask_logits(logits, top_k))


def _top_k(scores: Tensor, values: Tensor, indices: Tensor) -> None:
    largest, where = reference.topk(scores, values.shape[1])
    values.copy_(largest)
    indices.copy_(where)


def _chain_speculative(
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    seed: Tensor,
    offset: Tensor,
    *outputs: Tensor,
) -> None:
    results = speculative_reference.chain_speculative(
        draft_probs, draft_token_ids, target_probs, seed, offset
    )
    for output, result in zip(outputs, results, strict=True):
        output.copy_(result)


def _tree_speculative(
    draft_token_ids: Tensor,
    parents: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    seed: Tensor,
    offset: Tensor,
    *outputs: Tensor,
) -> None:
    results = speculative_reference.tree_speculative(
        draft_token_ids, parents, target_probs, draft_probs, seed, offset
    )
    for output, result in zip(outputs, results, strict=True):
        output.copy_(result)


sample = Reference(_sample)
sample_logits = Reference(_sample_logits)
softmax = Reference(_softmax)
top_k_renorm = Reference(_top_k_renorm)
top_p_renorm = Reference(_top_p_renorm)
top_k_mask_logits = Reference(_top_k_mask_logits)
top_k = Reference(_top_k)
chain_speculative = Reference(_chain_speculative)
tree_speculative = Reference(_tree_speculative)
