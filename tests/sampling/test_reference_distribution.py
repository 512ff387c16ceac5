"""Chi-square tests: what is drawn follows the stated distribution.

Seeds are fixed, so a test either always passes or always fails. Power: every comparison also shows
that the same counts refute (p < 1e-6) a distribution in which SHIFT of the mass has moved from the
most likely to the least likely outcome; a sampler with that bias would therefore be noticed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnhub.sampling import reference
from attnhub.sampling.speculative_reference import chain_speculative, tree_speculative

SHIFT = 0.03
NUM_DRAWS = 40_000
NUM_WALKS = 6_000  # a tree is walked request by request in Python
VOCAB = 4

# After token a (row a; the last row is the start) the target and the draft model say:
TARGET = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0, 0.5, 0.2, 0.3]])
DRAFT = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6], [0.25] * 4])
TARGET_START = torch.tensor([0.15, 0.35, 0.3, 0.2])
DRAFT_START = torch.tensor([0.5, 0.1, 0.3, 0.1])


def p_value(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Chance of counts at least this far from `probs`; 0 if an impossible outcome occurred."""
    expected = probs.double() / probs.double().sum() * counts.sum()
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    statistic = ((counts - expected)[possible].square() / expected[possible]).sum()
    degrees = possible.sum().double() - 1
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))


def assert_distributed(outcomes: torch.Tensor, probs: torch.Tensor) -> None:
    """outcomes: integers `[draws]`; probs: `[num_outcomes]`, any sum."""
    probs = probs.double() / probs.double().sum()
    assert outcomes.min() >= 0
    counts = torch.bincount(outcomes, minlength=len(probs)).double()
    assert p_value(counts, probs) > 1e-3, (counts / counts.sum() - probs).tolist()
    biased = probs.clone()
    biased[probs.argmax()] -= SHIFT
    biased[probs.where(probs > 0, 2.0).argmin()] += SHIFT
    assert p_value(counts, biased) < 1e-6, "too few draws to notice a bias"


def seeds(count: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count), torch.full((count,), offset)


def draw(rows: torch.Tensor, offset: int) -> torch.Tensor:
    return reference.sample_from_probs(rows, *seeds(len(rows), offset)).long()


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        pytest.param({}, [1, 1, 1, 1, 1, 1], id="none"),
        pytest.param({"top_k": 2}, [0, 1, 0, 1, 0, 1], id="top_k_keeps_ties"),
        pytest.param({"top_p": 0.6}, [0, 1, 0, 1, 0, 1], id="top_p_keeps_ties"),
        pytest.param({"min_p": 0.4}, [0, 1, 1, 1, 0, 1], id="min_p"),
        pytest.param({"top_k": 4, "top_p": 0.8}, [0, 1, 0, 1, 0, 1], id="top_k_first"),
        pytest.param({"top_k": 4, "top_p": 0.8, "joint": True}, [0, 1, 1, 1, 0, 1], id="joint"),
    ],
)
def test_filtered_sampling(filters: dict[str, Any], kept: list[int]) -> None:
    # Unnormalised on purpose. Sum 40: shares 0.05, 0.3, 0.15, 0.225, 0.05, 0.225.
    row = torch.tensor([2.0, 12.0, 6.0, 9.0, 2.0, 9.0])
    filtered = reference.filter_probs(row[None], **filters).expand(NUM_DRAWS, -1)
    assert_distributed(draw(filtered, 0), row * torch.tensor(kept))


def test_consecutive_offsets_of_one_seed_are_independent() -> None:
    rows = TARGET_START.expand(NUM_DRAWS, -1)
    seed = torch.full((NUM_DRAWS,), 11)
    tokens = reference.sample_from_probs(rows, seed, torch.arange(NUM_DRAWS)).long()
    pairs = tokens[0::2] * VOCAB + tokens[1::2]
    assert_distributed(pairs, torch.outer(TARGET_START, TARGET_START).flatten())


def test_sampling_from_logits_with_temperature() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 2.0, -torch.inf])
    tokens = reference.sample_from_logits(
        logits.expand(NUM_DRAWS, -1), *seeds(NUM_DRAWS, 3), temperature=2.0
    )
    assert_distributed(tokens.long(), torch.exp(logits.double() / 2))


# What two tokens drawn one after the other from the target model are distributed as.
TARGET_PAIRS = (TARGET_START[:, None] * TARGET).flatten()


def test_chain_output_follows_the_target() -> None:
    """Two tokens per request; where the chain yields one, the target model adds the second."""
    # Drafts and verification as an engine makes them: the first draft at the verifier's own offset.
    first = draw(DRAFT_START.expand(NUM_DRAWS, -1), 0)
    ids = torch.stack([first, draw(DRAFT[first], 1)], 1)
    draft = torch.stack([DRAFT_START.expand(NUM_DRAWS, -1), DRAFT[first]], 1)
    target = torch.stack([TARGET_START.expand(NUM_DRAWS, -1), TARGET[first], TARGET[ids[:, 1]]], 1)
    tokens, _, emitted = chain_speculative(draft, ids, target, *seeds(NUM_DRAWS, 0))
    assert torch.bincount(emitted, minlength=3).min() > NUM_DRAWS / 10, "an outcome goes untested"
    head, second = tokens[:, 0].long(), tokens[:, 1].long()
    second = second.where(emitted > 0, draw(TARGET[head], 3))
    assert_distributed(head * VOCAB + second, TARGET_PAIRS)
    # Where both drafts pass, which has chance min(p, q) each, the target adds the last token.
    full = emitted == 2
    both_pass = torch.minimum(TARGET_START, DRAFT_START) @ torch.minimum(TARGET, DRAFT)
    last_pair = ids[full, 1] * VOCAB + tokens[full, 2].long()
    assert_distributed(last_pair, (both_pass[:, None] * TARGET).flatten())


@pytest.mark.parametrize("method", ["chain", "tree"])
def test_one_draft_verified_at_its_own_seed_and_offset(method: str) -> None:
    """What an op draws and what verifies it are independent even at equal seed and offset."""
    num = NUM_DRAWS if method == "chain" else NUM_WALKS
    ids = draw(DRAFT_START.expand(num, -1), 5)[:, None]
    draft = DRAFT_START.expand(num, 1, -1)
    target = torch.stack([TARGET_START.expand(num, -1), TARGET[ids[:, 0]]], 1)
    if method == "chain":
        tokens, _, _ = chain_speculative(draft, ids, target, *seeds(num, 5))
        first = tokens[:, 0].long()
    else:
        parents = torch.full((num, 1), -1)
        _, accepted, bonus = tree_speculative(ids, parents, target, draft, *seeds(num, 5))
        first = ids[:, 0].where(accepted > 0, bonus)
    assert_distributed(first, TARGET_START)


@pytest.mark.parametrize("num_siblings", [1, 2, 3])
def test_tree_of_random_drafts_follows_the_target(num_siblings: int) -> None:
    """Siblings are drawn independently, so they may repeat; each has two random children."""
    siblings = [draw(DRAFT_START.expand(NUM_WALKS, -1), s) for s in range(num_siblings)]
    children = [draw(DRAFT[parent], 10 + s) for s, parent in enumerate(siblings * 2)]
    ids = torch.stack(siblings + children, 1)
    start = [DRAFT_START.expand(NUM_WALKS, -1)] * num_siblings
    draft = torch.stack(start + [DRAFT[parent] for parent in siblings * 2], 1)
    parents = [-1] * num_siblings + list(range(num_siblings)) * 2
    assert_tree_follows_target(ids, parents, draft)


@pytest.mark.parametrize("num_siblings", [1, 2, 3])
def test_tree_of_chosen_drafts_follows_the_target(num_siblings: int) -> None:
    """Without draft_probs: the draft model's best tokens, distinct among siblings."""
    best_start = DRAFT_START.argsort(descending=True, stable=True)[:num_siblings]
    best_next = DRAFT.argsort(dim=-1, descending=True, stable=True)[best_start, :num_siblings]
    ids = torch.cat([best_start, best_next.flatten()]).expand(NUM_WALKS, -1)
    parents = [-1] * num_siblings + [s for s in range(num_siblings) for _ in range(num_siblings)]
    assert_tree_follows_target(ids, parents, None)


def assert_tree_follows_target(
    ids: torch.Tensor, parents: list[int], draft: torch.Tensor | None
) -> None:
    """The first two tokens of path + bonus, completed by the target model, are TARGET_PAIRS."""
    target = torch.cat([TARGET_START.expand(NUM_WALKS, 1, -1), TARGET[ids]], 1)
    parent_rows = torch.tensor(parents, dtype=torch.int32).expand(NUM_WALKS, -1)
    paths, num_accepted, bonus = tree_speculative(
        ids, parent_rows, target, draft, *seeds(NUM_WALKS, 0)
    )
    assert set(num_accepted.tolist()) >= {1, 2}
    tokens = ids.gather(1, paths.clamp(min=0).long())
    head = tokens[:, 0].where(num_accepted > 0, bonus)
    second = tokens[:, 1].where(num_accepted > 1, bonus)
    second = second.where(num_accepted > 0, draw(TARGET[head], 77))
    assert_distributed(head * VOCAB + second, TARGET_PAIRS)
