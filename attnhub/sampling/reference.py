"""The meaning of every sampling op, in plain PyTorch: what each backend is tested against.

Shared rules

* A row is *valid* when every entry is finite and not negative and one is positive. It need not sum
  to 1: it is read in proportion to its own sum. An invalid row never raises and never touches its
  neighbours; it gives the token -1, an all-False mask, an all-zero filtered row or NaN
  probabilities, as each function says.
* Tie rule: filters compare values with a boundary value, and every token that equals the boundary
  is kept. A result therefore never depends on the order of the tokens. Each filter keeps at least
  the largest value of a valid row.
* A per-row parameter is a number or a tensor `[batch]`. Real ones are taken as float32 either way,
  so that ``0.9`` and ``torch.tensor([0.9])`` select the same tokens.
* Sums are taken in float64, draws in integers: the token drawn does not depend on batch or device.
"""

from __future__ import annotations

import math

import torch

from attnhub.sampling.philox import SAMPLE_STREAM, philox_uniform

__all__ = [
    "PerRow",
    "filter_probs",
    "inverse_transform",
    "min_p_keep",
    "sample_from_logits",
    "sample_from_probs",
    "softmax",
    "top_k_keep",
    "top_k_mask_logits",
    "top_k_renorm",
    "top_p_keep",
    "top_p_renorm",
    "topk",
    "valid_rows",
]

PerRow = torch.Tensor | float


def valid_rows(probs: torch.Tensor) -> torch.Tensor:
    """Which rows can be sampled, bool `[batch]`: all finite, none negative, not all zero.

    >>> valid_rows(torch.tensor([[0.5, 0.5], [0.0, 0.0], [float("nan"), 1.0]])).tolist()
    [True, False, False]
    """
    in_range = (probs >= 0) & (probs < math.inf)
    return in_range.all(-1) & (probs > 0).any(-1)


def softmax(logits: torch.Tensor, temperature: PerRow = 1.0) -> torch.Tensor:
    """Probabilities of ``logits / temperature``, float32 `[batch, vocab]`.

    logits: float `[batch, vocab]`, -inf allowed. temperature: number or `[batch]`; 0 puts all mass
    on the largest logit, the lowest index among equals. A row comes back all NaN when it holds NaN
    or +inf, when it is all -inf, or when its temperature is negative, infinite or NaN.

    >>> softmax(torch.tensor([[2.0, 2.0, 1.0]]), temperature=0).tolist()
    [[1.0, 0.0, 0.0]]
    """
    scores = logits.double()
    heat = _per_row(temperature, logits)
    largest = scores.amax(-1, keepdim=True)
    # Subtracting before dividing: a tiny temperature then underflows to 0 instead of inf - inf.
    weights = ((scores - largest) / heat).exp()
    greedy = torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    probs = greedy.where(heat == 0, weights / weights.sum(-1, keepdim=True))
    usable = largest.isfinite() & (heat >= 0) & heat.isfinite()
    return probs.where(usable, math.nan).to(torch.float32)


def top_k_keep(scores: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """Which entries are at least the k-th largest of their row, bool `[batch, vocab]`.

    scores: `[batch, vocab]`, probabilities or logits (-inf allowed). top_k: integer or `[batch]`;
    vocab or more keeps all, less than 1 counts as 1. A row that holds NaN keeps nothing.

    >>> top_k_keep(torch.tensor([[0.4, 0.3, 0.3, 0.0]]), 2).tolist()
    [[True, True, True, False]]

    Source: Fan, Lewis, Dauphin, "Hierarchical neural story generation", ACL 2018.
    """
    k = torch.as_tensor(top_k, device=scores.device).to(torch.int64).reshape(-1, 1)
    rank = k.clamp(1, scores.shape[-1]).expand(len(scores), 1) - 1
    boundary = scores.sort(dim=-1, descending=True).values.gather(-1, rank)
    return (scores >= boundary) & ~scores.isnan().any(-1, keepdim=True)


def top_p_keep(probs: torch.Tensor, top_p: PerRow) -> torch.Tensor:
    """The smallest set of top probabilities that holds top_p of the mass, bool `[batch, vocab]`.

    A token is kept iff the mass strictly above its value is less than ``top_p * row sum``; top_p 1
    keeps all positive entries, top_p 0 only the largest. An invalid row keeps nothing.

    >>> top_p_keep(torch.tensor([[0.5, 0.25, 0.25]]), 0.6).tolist()
    [[True, True, True]]

    Source: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020.
    """
    share = _per_row(top_p, probs)
    ordered = probs.double().sort(dim=-1, descending=True).values
    reached = ordered.cumsum(-1)
    before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
    num_kept = (before < share * reached[:, -1:]).sum(-1, keepdim=True).clamp(min=1)
    # NOTE: at 1 the boundary is set by hand, since a running sum may absorb the smallest entries.
    boundary = ordered.gather(-1, num_kept - 1).where(share < 1, 0.0)
    return (probs >= boundary) & (probs > 0) & valid_rows(probs)[:, None]


def min_p_keep(probs: torch.Tensor, min_p: PerRow) -> torch.Tensor:
    """Which entries are positive and at least ``min_p * row maximum``, bool `[batch, vocab]`.

    More than 1 counts as 1. An invalid row keeps nothing.

    >>> min_p_keep(torch.tensor([[0.5, 0.25, 0.2, 0.05]]), 0.5).tolist()
    [[True, True, False, False]]

    Source: Nguyen et al., "Turning up the heat: min-p sampling", ICLR 2025.
    """
    boundary = _per_row(min_p, probs).clamp(max=1.0) * probs.double().amax(-1, keepdim=True)
    return (probs >= boundary) & (probs > 0) & valid_rows(probs)[:, None]


def filter_probs(
    probs: torch.Tensor,
    *,
    top_k: torch.Tensor | int | None = None,
    top_p: PerRow | None = None,
    min_p: PerRow | None = None,
    joint: bool = False,
) -> torch.Tensor:
    """Rows with what the filters reject set to 0, not renormalised, `[batch, vocab]`.

    joint=False: top_p looks at the distribution that top_k has left, in proportion to its sum.
    joint=True: top_k and top_p both look at the given distribution. min_p always does.
    An invalid row comes back all zero, which is invalid too: sampling from it gives -1.

    >>> probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    >>> filter_probs(probs, top_k=2, top_p=0.625).tolist()
    [[0.5, 0.0, 0.0, 0.0]]
    >>> filter_probs(probs, top_k=2, top_p=0.625, joint=True).tolist()
    [[0.5, 0.25, 0.0, 0.0]]
    """
    keep = (probs > 0) & valid_rows(probs)[:, None]
    if top_k is not None:
        keep &= top_k_keep(probs, top_k)
    if top_p is not None:
        keep &= top_p_keep(probs if joint else probs.where(keep, 0.0), top_p)
    if min_p is not None:
        keep &= min_p_keep(probs, min_p)
    return probs.where(keep, 0.0)


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """Probabilities after top_k, float32 `[batch, vocab]`, rows sum to 1; NaN for an invalid row.

    >>> top_k_renorm(torch.tensor([[0.5, 0.25, 0.125, 0.125]]), 1).tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    return _renormalise(filter_probs(probs, top_k=top_k))


def top_p_renorm(probs: torch.Tensor, top_p: PerRow) -> torch.Tensor:
    """Probabilities after top_p, float32 `[batch, vocab]`, rows sum to 1; NaN for an invalid row.

    >>> top_p_renorm(torch.tensor([[0.5, 0.25, 0.125, 0.125]]), 0.4).tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    return _renormalise(filter_probs(probs, top_p=top_p))


def top_k_mask_logits(logits: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """Logits with all but the k largest set to -inf, `[batch, vocab]`, dtype of logits.

    Ties at the boundary stay. A row that holds NaN comes back all NaN.

    >>> top_k_mask_logits(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    masked = logits.where(top_k_keep(logits, top_k), -math.inf)
    return masked.where(~logits.isnan().any(-1, keepdim=True), math.nan)


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest values `[batch, k]`, descending, and their int32 indices `[batch, k]`.

    Among equals the lowest index comes first and exactly k are returned. NaN counts as largest.

    >>> values, indices = topk(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
    >>> values.tolist(), indices.tolist()
    ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    vocab = scores.shape[-1]
    if not 0 <= k <= vocab:
        raise ValueError(f"k={k}: each row holds {vocab} entries; give k between 0 and {vocab}")
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    return ordered.values[:, :k], ordered.indices[:, :k].to(torch.int32)


def inverse_transform(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Tokens that the uniforms select in proportion to the weights, int32 `[batch]`.

    weights: float `[batch, vocab]`; uniform: `[batch]` in [0, 1). The token is the first whose
    running sum exceeds ``uniform * row sum``, hence always below vocab and never of weight 0.
    An invalid row gives -1.

    >>> weights = torch.tensor([[0.25, 0.0, 0.75], [0.25, 0.0, 0.75]])
    >>> inverse_transform(weights, torch.tensor([0.2, 0.25])).tolist()
    [0, 2]
    """
    valid = valid_rows(weights)
    exact = weights.double().where(valid[:, None], 1.0)
    # Whole 2^-40ths of the largest weight: int64 sums are exact up to 2^22 tokens, so the running
    # sum is monotone and equal on every device. What rounds to 0 is far below the step of a draw.
    units = (exact / exact.amax(-1, keepdim=True) * 2.0**40).round().to(torch.int64)
    reached = units.cumsum(-1)
    mark = (uniform.double()[:, None] * reached[:, -1:]).to(torch.int64)
    tokens = torch.searchsorted(reached, mark, right=True)[:, 0]
    return tokens.where(valid, -1).to(torch.int32)


def sample_from_probs(
    probs: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    *,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per request, int32 `[batch]`; -1 where the row is invalid.

    probs: float `[batch, vocab]`; with indices, int32 `[batch]`, request b uses row indices[b].
    seed, offset: int64 `[batch]`; a token depends on its own row, seed and offset only. A draw has
    24 random bits: each token's chance is its probability to within 2^-24. To filter, compose::

        sample_from_probs(filter_probs(probs, top_k=50, top_p=0.9), seed, offset)

    >>> seed = torch.tensor([1, 2])
    >>> sample_from_probs(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), seed, seed).tolist()
    [1, -1]
    """
    rows = probs if indices is None else probs.index_select(0, indices)
    uniform = philox_uniform(seed, offset, 1, stream=SAMPLE_STREAM)[:, 0]
    return inverse_transform(rows, uniform)


def sample_from_logits(
    logits: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    *,
    temperature: PerRow = 1.0,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per request from ``softmax(logits, temperature)``, int32 `[batch]`; -1 if invalid.

    logits: float `[batch, vocab]` or, with indices, any rows; temperature is per request.

    >>> seed = torch.tensor([1])
    >>> sample_from_logits(torch.tensor([[1.0, 5.0]]), seed, seed, temperature=0).tolist()
    [1]
    """
    rows = logits if indices is None else logits.index_select(0, indices)
    return sample_from_probs(softmax(rows, temperature), seed, offset)


def _per_row(value: PerRow, like: torch.Tensor) -> torch.Tensor:
    """A float32 parameter widened to float64, `[batch, 1]` or `[1, 1]`."""
    exact = torch.as_tensor(value, dtype=torch.float32, device=like.device)
    return exact.double().reshape(-1, 1)


def _renormalise(probs: torch.Tensor) -> torch.Tensor:
    """Rows divided by their sum; an all-zero row becomes NaN."""
    exact = probs.double()
    return (exact / exact.sum(-1, keepdim=True)).to(torch.float32)
