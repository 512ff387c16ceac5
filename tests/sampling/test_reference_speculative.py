"""Speculative verification against a second, naive implementation that works on Python floats."""

from __future__ import annotations

import math

import pytest
import torch

from attnhub.sampling import speculative_reference
from attnhub.sampling.philox import CHAIN_STREAM, TREE_STREAM, philox_uniform
from attnhub.sampling.speculative_reference import chain_speculative, tree_speculative

VOCAB = 5
Row = list[float]


def pick(row: Row, uniform: float) -> int:
    mark, reached = uniform * math.fsum(row), 0.0
    for token, prob in enumerate(row):
        reached += prob
        if prob > 0 and reached > mark:
            return token
    raise AssertionError("the row holds no mass")


def residual(p: Row, q: Row) -> Row:
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [r / math.fsum(rest) for r in rest]


def chain_oracle(draft: list[Row], ids: list[int], target: list[Row], u: Row) -> list[list[int]]:
    """[tokens, accepted, emitted] of one request, position by position."""
    n = len(ids)
    passed = [u[i] < target[i][t] / draft[i][t] for i, t in enumerate(ids)]
    emitted = passed.index(False) if False in passed else n
    row = target[n] if emitted == n else residual(target[emitted], draft[emitted])
    tokens = [*ids[:emitted], pick(row, u[n])]
    return [tokens + [-1] * (n - emitted), [sum(passed)], [emitted]]


def tree_oracle(
    ids: list[int], parents: list[int], target: list[Row], draft: list[Row] | None, u: Row
) -> tuple[list[int], int]:
    """Path and bonus token of one request by recursion over lists of children."""

    def descend(node: int, p: Row) -> tuple[list[int], int]:
        for child in [c for c, parent in enumerate(parents) if parent == node]:
            token = ids[child]
            if draft is None:
                accepted = u[child] < p[token] / math.fsum(p)
                remaining = [0.0 if t == token else x for t, x in enumerate(p)]
            else:
                accepted = u[child] < p[token] / draft[child][token]
                remaining = p if accepted else residual(p, draft[child])
            if accepted:
                path, bonus = descend(child, target[child + 1])
                return [child, *path], bonus
            p = remaining
        return [], pick(p, u[-1])

    return descend(-1, target[0])


def random_rows(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def seeds(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(batch) * 3 + 1, torch.arange(batch) + 2**32


@pytest.mark.parametrize("n", [0, 1, 2, 7], ids=["no_draft", "one", "two", "two_philox_blocks"])
def test_chain_equals_oracle(n: int) -> None:
    batch = 150
    draft, target = random_rows(batch, n, seed=n), random_rows(batch, n + 1, seed=n + 50)
    ids = torch.randint(VOCAB, (batch, n), generator=torch.Generator().manual_seed(n))
    seed, offset = seeds(batch)
    uniform = philox_uniform(seed, offset, n + 1, stream=CHAIN_STREAM)
    tokens, accepted, emitted = chain_speculative(draft, ids.int(), target, seed, offset)
    assert tokens.dtype == accepted.dtype == emitted.dtype == torch.int32
    for b in range(batch):
        rows = draft[b].tolist(), ids[b].tolist(), target[b].tolist(), uniform[b].tolist()
        got = [tokens[b].tolist(), [accepted[b].item()], [emitted[b].item()]]
        assert got == chain_oracle(*rows), f"request {b}"
    if n > 1:
        assert (accepted > emitted).any(), "no request passes again after its first rejection"


def test_chain_identical_distributions_accept_everything() -> None:
    probs, ids = random_rows(64, 4, seed=9), torch.full((64, 3), 2)
    tokens, accepted, emitted = chain_speculative(probs[:, :3], ids, probs, *seeds(64))
    assert torch.equal(tokens[:, :3], ids.int())
    assert accepted.tolist() == emitted.tolist() == [3] * 64


def test_chain_impossible_draft_is_corrected_from_the_target() -> None:
    draft, target = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    got = chain_speculative(draft, torch.tensor([[0]]), target, *seeds(1))
    assert [x.tolist() for x in got] == [[[1, -1]], [0], [0]]


def test_chain_rejection_without_residual_falls_back_to_the_target() -> None:
    """The draft row exceeds the target row everywhere, as sums that differ by rounding can."""
    target = torch.tensor([[[0.0, 0.4, 0.0], [1.0, 0.0, 0.0]]]).expand(64, 2, 3)
    draft = torch.tensor([[[0.0, 1.0, 0.0]]]).expand(64, 1, 3)
    ids = torch.ones(64, 1, dtype=torch.int64)
    tokens, _, emitted = chain_speculative(draft, ids, target, *seeds(64))
    assert set(emitted.tolist()) == {0, 1}
    assert tokens[:, 0].tolist() == [1] * 64


BAD_ROWS = {
    "nan": [math.nan] * VOCAB,
    "inf": [math.inf] * VOCAB,
    "negative": [-0.25] * VOCAB,
    "all_zero": [0.0] * VOCAB,
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("where", ["target", "draft"])
def test_chain_refuses_an_invalid_row_it_needs_and_only_that_request(
    bad: list[float], where: str
) -> None:
    draft, target = random_rows(3, 2, seed=1), random_rows(3, 3, seed=2)
    ids, (seed, offset) = torch.ones(3, 2, dtype=torch.int64), seeds(3)
    clean = chain_speculative(draft, ids, target, seed, offset)
    if where == "draft":
        target[1, 0, 1] = 0.0  # a draft row is needed in full only when its token is rejected
    {"target": target, "draft": draft}[where][1, 0] = torch.tensor(bad)
    tokens, accepted, emitted = chain_speculative(draft, ids, target, seed, offset)
    assert tokens[1].tolist() == [-1, -1, -1]
    assert accepted[1] == emitted[1] == 0
    for got, expected in zip((tokens, accepted, emitted), clean, strict=True):
        assert torch.equal(got[[0, 2]], expected[[0, 2]])


def test_chain_invalid_last_target_row_matters_only_when_all_drafts_pass() -> None:
    probs, ids = random_rows(64, 2, seed=5), torch.ones(64, 1, dtype=torch.int64)
    target = probs.clone()
    target[:, 0] = random_rows(64, seed=6)
    target[:, 1] = math.nan
    tokens, accepted, emitted = chain_speculative(probs[:, :1], ids, target, *seeds(64))
    refused = (tokens == -1).all(-1)
    uniform = philox_uniform(*seeds(64), 1, stream=CHAIN_STREAM)[:, 0]
    passes = uniform * probs[:, 0, 1] < target[:, 0, 1]
    assert refused.any()
    assert not refused.all()
    assert torch.equal(refused, passes)
    assert accepted.tolist() == emitted.tolist() == [0] * 64


TREES = {
    "empty": [],
    "chain": [-1, 0, 1, 2],
    "siblings": [-1, -1, -1],
    "binary": [-1, -1, 0, 0, 1, 1],
    "depth_first_order": [-1, 0, 1, 0, -1, 4],
    "unused_nodes": [-1, -2, 0, -2, -1, 4, -2],
}


@pytest.mark.parametrize("shape", TREES.values(), ids=TREES)
@pytest.mark.parametrize("target_only", [False, True])
def test_tree_equals_oracle(shape: list[int], target_only: bool) -> None:
    batch, n = 120, len(shape)
    target, draft = random_rows(batch, n + 1, seed=n), random_rows(batch, n, seed=n + 9)
    # Without draft_probs siblings are distinct: consecutive ids do that for up to VOCAB of them.
    ids = (torch.arange(n)[None] + torch.arange(batch)[:, None]) % VOCAB
    if not target_only:
        ids = torch.randint(VOCAB, (batch, n), generator=torch.Generator().manual_seed(n))
    parents = torch.tensor(shape, dtype=torch.int32).expand(batch, n)
    seed, offset = seeds(batch)
    uniform = philox_uniform(seed, offset, n + 1, stream=TREE_STREAM).tolist()
    q = None if target_only else draft
    paths, num_accepted, bonus = tree_speculative(ids.int(), parents, target, q, seed, offset)
    assert paths.shape == (batch, n)
    assert paths.dtype == num_accepted.dtype == bonus.dtype == torch.int32
    for b in range(batch):
        rows = None if target_only else draft[b].tolist()
        path, token = tree_oracle(ids[b].tolist(), shape, target[b].tolist(), rows, uniform[b])
        assert paths[b].tolist() == path + [-1] * (n - len(path)), f"request {b}"
        assert (num_accepted[b].item(), bonus[b].item()) == (len(path), token), f"request {b}"


def test_tree_that_is_a_chain_agrees_with_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_reference, "TREE_STREAM", CHAIN_STREAM)
    batch, n = 100, 3
    draft, target = random_rows(batch, n, seed=3), random_rows(batch, n + 1, seed=4)
    ids = torch.randint(VOCAB, (batch, n), generator=torch.Generator().manual_seed(1))
    parents = (torch.arange(n) - 1).expand(batch, n)
    tokens, _, emitted = chain_speculative(draft, ids, target, *seeds(batch))
    _, num_accepted, bonus = tree_speculative(ids, parents, target, draft, *seeds(batch))
    assert torch.equal(num_accepted, emitted)
    assert torch.equal(bonus, tokens.gather(1, emitted.long()[:, None])[:, 0])


@pytest.mark.parametrize("target_only", [False, True])
@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_tree_refuses_a_request_that_reaches_an_invalid_row(
    bad: list[float], target_only: bool
) -> None:
    parents = torch.tensor([[-1, 0, -1]]).expand(3, 3)
    ids = torch.tensor([[0, 1, 2]]).expand(3, 3)
    target = torch.zeros(3, 4, VOCAB)
    target[:, 0, 0] = target[:, 1, 1] = target[:, 2, 4] = 1.0  # the path 0, 1 and then token 4
    target[:, 3] = math.nan  # after node 2, which no request reaches
    draft = None if target_only else torch.full((3, 3, VOCAB), 1 / VOCAB)
    target[1, 1] = torch.tensor(bad)
    paths, num_accepted, bonus = tree_speculative(ids, parents, target, draft, *seeds(3))
    assert paths.tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, -1]]
    assert num_accepted.tolist() == [2, 0, 2]
    assert bonus.tolist() == [4, -1, 4]
