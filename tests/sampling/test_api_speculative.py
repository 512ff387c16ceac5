"""Chains and trees of drafts through the public functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnhub import sampling
from attnhub.errors import InvalidArgument
from attnhub.sampling.speculative_reference import chain_speculative, tree_speculative

BATCH, DRAFTS, VOCAB = 64, 3, 7


def rows(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, count, VOCAB, generator=generator).softmax(-1)


TARGET = rows(DRAFTS + 1, 0)
DRAFT = rows(DRAFTS, 1)
IDS = torch.randint(
    VOCAB, (BATCH, DRAFTS), generator=torch.Generator().manual_seed(2), dtype=torch.int32
)
PARENTS = torch.tensor([-1, -1, 0], dtype=torch.int32).repeat(BATCH, 1)
RNG = {"seed": torch.arange(BATCH), "offset": torch.arange(BATCH) % 5}


def test_chain_is_the_reference() -> None:
    got = sampling.chain_speculative_sampling(DRAFT, IDS, TARGET, **RNG)
    expected = chain_speculative(DRAFT, IDS, TARGET, **RNG)
    for result, wanted in zip(got, expected, strict=True):
        assert result.dtype == torch.int32
        assert torch.equal(result, wanted)
    assert set(got[2].tolist()) == {0, 1, 2, 3}, "every length of the accepted prefix occurs"


def test_chain_of_no_drafts_draws_from_the_target() -> None:
    nothing = torch.empty(BATCH, 0, dtype=torch.int32)
    tokens, accepted, emitted = sampling.chain_speculative_sampling(
        DRAFT[:, :0], nothing, TARGET[:, :1], **RNG
    )
    wanted = chain_speculative(DRAFT[:, :0], nothing, TARGET[:, :1], **RNG)[0]
    assert torch.equal(tokens, wanted)
    assert bool((tokens >= 0).all())
    drawn = sampling.sample_from_probs(TARGET[:, 0], **RNG)
    assert not torch.equal(tokens[:, 0], drawn), "a chain has random numbers of its own"
    assert not accepted.any()
    assert not emitted.any()


@pytest.mark.parametrize("draft", [DRAFT, None], ids=["drawn", "chosen"])
def test_tree_is_the_reference(draft: torch.Tensor | None) -> None:
    got = sampling.tree_speculative_sampling(IDS, PARENTS, TARGET, draft, **RNG)
    expected = tree_speculative(IDS, PARENTS, TARGET, draft, **RNG)
    for result, wanted in zip(got, expected, strict=True):
        assert result.dtype == torch.int32
        assert torch.equal(result, wanted)
    assert set(got[1].tolist()) == {0, 1, 2}


def test_requests_do_not_depend_on_the_batch() -> None:
    b = slice(10, 11)
    rng = {name: value[b] for name, value in RNG.items()}
    chain = sampling.chain_speculative_sampling(DRAFT, IDS, TARGET, **RNG)
    alone = sampling.chain_speculative_sampling(DRAFT[b], IDS[b], TARGET[b], **rng)
    assert [x[b].tolist() for x in chain] == [x.tolist() for x in alone]
    tree = sampling.tree_speculative_sampling(IDS, PARENTS, TARGET, **RNG)
    alone = sampling.tree_speculative_sampling(IDS[b], PARENTS[b], TARGET[b], **rng)
    assert [x[b].tolist() for x in tree] == [x.tolist() for x in alone]


def test_a_bad_request_spares_its_neighbours() -> None:
    target = TARGET.clone()
    target[1] = math.nan
    good = sampling.chain_speculative_sampling(DRAFT, IDS, TARGET, **RNG)
    got = sampling.chain_speculative_sampling(DRAFT, IDS, target, **RNG)
    assert [x[1].tolist() for x in got] == [[-1] * 4, 0, 0]
    path, count, bonus = sampling.tree_speculative_sampling(IDS, PARENTS, target, **RNG)
    assert (path[1].tolist(), count[1].item(), bonus[1].item()) == ([-1] * 3, 0, -1)
    others = torch.arange(BATCH) != 1
    assert all(torch.equal(x[others], y[others]) for x, y in zip(got, good, strict=True))


def test_generators_advance() -> None:
    flat = torch.full((4, 1, 2**20), 2.0**-20)
    nothing = torch.empty(4, 0, dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    calls = [
        sampling.chain_speculative_sampling(flat[:, :0], nothing, flat, generator=generator)[0],
        sampling.chain_speculative_sampling(flat[:, :0], nothing, flat)[0],
        sampling.tree_speculative_sampling(nothing, nothing, flat, generator=generator)[2],
    ]
    assert len(set(torch.cat([c.flatten() for c in calls]).tolist())) == 12


def test_empty_batch() -> None:
    tokens, *_ = sampling.chain_speculative_sampling(DRAFT[:0], IDS[:0], TARGET[:0])
    path, *_ = sampling.tree_speculative_sampling(IDS[:0], PARENTS[:0], TARGET[:0])
    assert (tokens.shape, path.shape) == ((0, DRAFTS + 1), (0, DRAFTS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"ids": IDS.long()}, "draft_token_ids has dtype int64, needs int32", id="int64"
        ),
        pytest.param({"ids": IDS[0]}, r"needs \[batch, drafts\]", id="1-d-ids"),
        pytest.param({"ids": IDS + 7}, r"draft_token_ids\[0\] is \d+, needs 0 to 6", id="range"),
        pytest.param(
            {"ids": IDS.T.contiguous().T}, "draft_token_ids is not contiguous", id="ids-stride"
        ),
        pytest.param({"ids": IDS.to("meta")}, "draft_token_ids is on meta", id="ids-device"),
        pytest.param({"ids": [[1]]}, "draft_token_ids must be a torch.Tensor", id="ids-list"),
        pytest.param({"target": None}, "target_probs must be a torch.Tensor", id="no-target"),
        pytest.param({"draft": 0.5}, "draft_probs must be a torch.Tensor", id="draft-number"),
        pytest.param({"target": TARGET.clone().requires_grad_()}, "forward only", id="grad"),
        pytest.param(
            {"target": TARGET[:, :3]}, r"shape \[64, 3, 7\], needs \[64, 4, 7\]", id="rows"
        ),
        pytest.param(
            {"target": TARGET[0]}, r"needs \[batch, drafts \+ 1, vocab\]", id="2-d-target"
        ),
        pytest.param(
            {"target": TARGET.half()}, "target_probs has dtype float16", id="target-dtype"
        ),
        pytest.param({"draft": DRAFT[..., :6]}, r"draft_probs has shape \[64, 3, 6\]", id="vocab"),
        pytest.param({"draft": DRAFT.double()}, "draft_probs has dtype float64", id="draft-dtype"),
        pytest.param({"draft": DRAFT.to("meta")}, "draft_probs is on meta", id="draft-device"),
        pytest.param(
            {"draft": DRAFT.mT.contiguous().mT}, "draft_probs has stride", id="draft-stride"
        ),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    given = {"ids": IDS, "target": TARGET, "draft": DRAFT} | changes
    ids, target, draft = given["ids"], given["target"], given["draft"]
    with pytest.raises(InvalidArgument, match=message):
        sampling.chain_speculative_sampling(draft, ids, target, **RNG)
    with pytest.raises(InvalidArgument, match=message):
        sampling.tree_speculative_sampling(ids, PARENTS, target, draft, **RNG)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param((-1, -3, 0), id="below-unused"),
        pytest.param((-1, 1, 0), id="its-own-parent"),
        pytest.param((-1, 2, 1), id="cycle"),
        pytest.param((3, -1, 0), id="no-node"),
    ],
)
def test_parents_come_before_their_children(bad: tuple[int, int, int]) -> None:
    parents = PARENTS.clone()
    parents[5] = torch.tensor(bad)
    node = next(i for i, parent in enumerate(bad) if parent < -2 or parent >= i)
    message = rf"parents\[5, {node}\] is {bad[node]}, needs -2 \(unused\), -1 .*before {node}"
    with pytest.raises(InvalidArgument, match=message):
        sampling.tree_speculative_sampling(IDS, parents, TARGET, **RNG)


def test_bad_parents_and_unused_nodes() -> None:
    with pytest.raises(InvalidArgument, match=r"parents has shape \[64, 2\], needs \[64, 3\]"):
        sampling.tree_speculative_sampling(IDS, PARENTS[:, :2].contiguous(), TARGET)
    with pytest.raises(InvalidArgument, match="parents has dtype int64"):
        sampling.tree_speculative_sampling(IDS, PARENTS.long(), TARGET)
    with pytest.raises(InvalidArgument, match=r"parents must be a torch\.Tensor, got list"):
        sampling.tree_speculative_sampling(IDS, [[-1]], TARGET)  # type: ignore[arg-type]
    ids, parents = IDS.clone(), PARENTS.clone()
    ids[:, 2], parents[:, 2] = -99, -2  # an unused node may hold anything
    path, *_ = sampling.tree_speculative_sampling(ids, parents, TARGET, **RNG)
    assert path.max() <= 1
