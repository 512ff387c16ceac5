"""The suite catches samplers that are biased, deaf to a setting, or not reproducible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnhub.sampling import speculative_reference
from tests.testing.liars import Liar, Register, failures

Args = tuple[Any, ...]

# -- sample: probs, indices, seed, offset, top_k, top_p, min_p, joint, out -------------------------
# -- sample_logits has the temperature before top_k ------------------------------------------------


def put(args: Args, at: int, value: Any) -> Args:
    return (*args[:at], value, *args[at + 1 :])


def without(at: int) -> Callable[..., None]:
    """Drop an argument."""
    return lambda honest, *args: honest(*put(args, at, None))


def flattened(honest: Any, probs: Any, *rest: Any) -> None:
    honest(probs**0.75, *rest)


def never_the_last_twentieth(honest: Any, probs: Any, *rest: Any) -> None:
    """A uniform that does not reach 1."""
    rows = probs.clone()
    rows[:, -1] *= 0.2
    honest(rows, *rest)


def off_by_one(honest: Any, probs: Any, *rest: Any) -> None:
    honest(probs, *rest)
    rest[-1].add_(rest[-1] >= 0).clamp_(max=probs.shape[1] - 1)


def filters_apart(honest: Any, *args: Any) -> None:
    honest(*args[:-2], False, args[-1])


def row_of_the_request(honest: Any, probs: Any, indices: Any, *rest: Any) -> None:
    if indices is not None:
        indices = torch.arange(len(indices), dtype=torch.int32) % len(probs)
    honest(probs, indices, *rest)


def first_setting_for_all(honest: Any, *args: Any) -> None:
    settings = [x[5:6].expand(len(x)) if isinstance(x, torch.Tensor) else x for x in args[4:7]]
    honest(*args[:4], *settings, *args[7:])


def deaf_to_seeds(honest: Any, probs: Any, indices: Any, seed: Any, *rest: Any) -> None:
    honest(probs, indices, torch.zeros_like(seed), *rest)


def deaf_to_offsets(honest: Any, *args: Any) -> None:
    honest(*put(args, 3, torch.zeros_like(args[3])))


def seeds_of_its_own(honest: Any, *args: Any) -> None:
    honest(*put(args, 2, torch.randint(2**62, args[2].shape)))


def sampled_all_the_same(honest: Any, probs: Any, *rest: Any) -> None:
    honest(probs.nan_to_num(1.0, posinf=1.0).clamp(min=1e-30), *rest)


def neighbours_harmed(honest: Any, probs: Any, *rest: Any) -> None:
    honest(probs, *rest)
    out = rest[-1]
    out[1:][out[:-1] < 0] = -1


def rows_packed(honest: Any, x: Any, *rest: Any) -> None:
    honest(x.as_strided(x.shape, (x.shape[1], 1)), *rest)


SAMPLE = {
    "flattened": (flattened, {"base"}),
    "one token too seldom": (never_the_last_twentieth, {"base"}),
    "next token": (off_by_one, {"base"}),
    "top_k ignored": (without(4), {"top_k=True"}),
    "top_p ignored": (without(5), {"top_p=True"}),
    "min_p ignored": (without(6), {"min_p=True"}),
    "order of filters ignored": (filters_apart, {"joint=True"}),
    "settings of another": (first_setting_for_all, {"top_k=True", "top_p=True", "min_p=True"}),
    "indices ignored": (row_of_the_request, {"indices=True"}),
    "seeds ignored": (deaf_to_seeds, {"base"}),
    "offsets ignored": (deaf_to_offsets, {"base"}),
    "not reproducible": (seeds_of_its_own, {"base"}),
    "never refuses": (sampled_all_the_same, {"base"}),
    "a refusal harms the next row": (neighbours_harmed, {"base"}),
    "strides ignored": (rows_packed, {"contiguous=False"}),
}


def temperature_halved(honest: Any, *args: Any) -> None:
    heat = args[4]
    honest(*put(args, 4, heat if heat is None else heat * 0.5))


def never_greedy(honest: Any, *args: Any) -> None:
    heat = args[4]
    honest(*put(args, 4, heat.clamp(min=0.3) if isinstance(heat, torch.Tensor) else heat))


SAMPLE_LOGITS = {
    "temperature ignored": (without(4), {"temperature=True"}),
    "temperature halved": (temperature_halved, {"temperature=True"}),
    "never greedy": (never_greedy, {"temperature=True"}),
    "min_p ignored": (without(7), {"min_p=True"}),
}

# -- speculative -----------------------------------------------------------------------------------


# What the reference is made of -> what it is replaced by. The suite expects exact probabilities, so
# that it does not matter that the reference lies too.
PATCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "correction from the whole target": ("_residual", lambda p, q: p),
    "every draft passes": ("_passes", lambda p, q, u: p > 0),
    "drafts judged by the target alone": ("_passes", lambda p, q, u: u < p),
}

# -- chain_speculative: draft_probs, ids, target, seed, offset, tokens, accepted, emitted ----------
# -- tree_speculative: ids, parents, target, draft_probs, seed, offset, path, accepted, bonus ------


def accepted_is_emitted(honest: Any, *args: Any) -> None:
    honest(*args)
    args[6].copy_(args[7])


def no_padding(honest: Any, *args: Any) -> None:
    honest(*args)
    args[5].clamp_(min=0)


def half_refused(honest: Any, *args: Any) -> None:
    honest(*args)
    args[6].add_((args[5] < 0).all(1))


def unused_nodes_tried(honest: Any, ids: Any, parents: Any, *rest: Any) -> None:
    honest(ids.clamp(min=0), parents.clamp(min=-1), *rest)


def tokens_for_nodes(honest: Any, ids: Any, *rest: Any) -> None:
    honest(ids, *rest)
    path = rest[5]
    path.copy_(ids.gather(1, path.clamp(min=0).long()).where(path >= 0, -1))


CHAIN = {
    "accepted is emitted": (accepted_is_emitted, {"base"}),
    "no padding": (no_padding, {"base"}),
    "refused, but not all of it": (half_refused, {"base"}),
    "strides ignored": (
        lambda honest, draft, *rest: honest(draft.as_strided(draft.shape, (51, 17, 1)), *rest),
        {"contiguous=False"},
    ),
}
TREE = {
    "draft_probs ignored": (without(3), {"draft_probs=True"}),
    "unused nodes tried": (unused_nodes_tried, {"base"}),
    "tokens for nodes": (tokens_for_nodes, {"base"}),
}

# -- transforms ------------------------------------------------------------------------------------


def last_of_equals(honest: Any, logits: Any, heat: Any, out: Any) -> None:
    flipped = torch.empty_like(out)
    honest(logits.flip(1), heat, flipped)
    out.copy_(flipped.flip(1))


def zeros_for_nan(honest: Any, x: Any, setting: Any, out: Any) -> None:
    honest(x, setting, out)
    out.nan_to_num_(0.0)


def exactly_k(honest: Any, x: Any, k: Any, out: Any) -> None:
    ranks = x.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    kept = ranks < torch.as_tensor(k).reshape(-1, 1)
    honest(x.where(kept, 0.0), k, out)


def not_renormalised(honest: Any, x: Any, p: Any, out: Any) -> None:
    given = x.clone()
    honest(x, p, out)
    out.copy_(given.where(out > 0, out))


def any_of_equals(honest: Any, scores: Any, values: Any, indices: Any) -> None:
    honest(scores.flip(1), values, indices)
    indices.copy_(scores.shape[1] - 1 - indices)


FAMILIES: dict[str, dict[str, tuple[Callable[..., None], set[str]]]] = {
    "sample": SAMPLE,
    "sample_logits": SAMPLE_LOGITS,
    "chain_speculative": CHAIN,
    "tree_speculative": TREE,
    "softmax": {
        "last of equals": (last_of_equals, {"temperature=True"}),
        "zeros for NaN": (zeros_for_nan, {"base"}),
    },
    "top_k_renorm": {
        "exactly k": (exactly_k, {"base"}),
        "not renormalised": (not_renormalised, {"base"}),
    },
    "top_p_renorm": {"not renormalised": (not_renormalised, {"base"})},
    "top_k_mask_logits": {"zeros for NaN": (zeros_for_nan, {"base"})},
    "top_k": {"any of equals": (any_of_equals, {"base"})},
}
LIES = [
    pytest.param(f"sampling.{op}", lie, noticed, id=f"{op}: {name}")
    for op, lies in FAMILIES.items()
    for name, (lie, noticed) in lies.items()
]


@pytest.mark.parametrize(("op", "lie", "noticed"), LIES)
def test_catches(register: Register, op: str, lie: Callable[..., None], noticed: set[str]) -> None:
    register(Liar(op, run=lie), op=op)
    looked_at = {f"serves-{corner}" for corner in noticed | {"base"}}
    found = failures(looked_at.__contains__, op)
    assert set(found) == {f"serves-{corner}" for corner in noticed}
    assert "raised" not in "".join(found.values())


@pytest.mark.parametrize(("name", "lie"), PATCHES.values(), ids=PATCHES)
@pytest.mark.parametrize("op", ["chain_speculative", "tree_speculative"])
def test_catches_a_wrong_verification(
    register: Register, monkeypatch: pytest.MonkeyPatch, op: str, name: str, lie: Any
) -> None:
    monkeypatch.setattr(speculative_reference, name, lie)
    register(Liar(f"sampling.{op}"), op=f"sampling.{op}")
    corner = "serves-draft_probs=True" if op == "tree_speculative" else "serves-base"
    assert set(failures(corner.__eq__, f"sampling.{op}")) == {corner}


def test_says_what_is_wrong(register: Register) -> None:
    register(Liar("sampling.sample", run=flattened), op="sampling.sample")
    (message,) = failures("serves-base".__eq__, "sampling.sample").values()
    assert "10000 draws lie 0." in message
    assert "(allowed 0.04" in message
