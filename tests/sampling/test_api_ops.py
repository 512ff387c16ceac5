"""Each sampling op as torch sees it, under torch.compile, and as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub import sampling
from attnhub.core import discovery
from attnhub.sampling import SamplingParams, draw, problem, speculative, transform, workloads

B, V, N = 3, 17, 2
PROBS = torch.randn(B, V, generator=torch.Generator().manual_seed(0)).softmax(-1)
CUBE = torch.randn(B, N + 1, V, generator=torch.Generator().manual_seed(1)).softmax(-1)
SEED, OFFSET = torch.arange(B), torch.arange(B)
INDICES = torch.tensor([2, 0, 0], dtype=torch.int32)
K, P = torch.full((B,), 3, dtype=torch.int32), torch.full((B,), 0.8)
IDS = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32)
PARENTS = torch.tensor([[-1, 0], [-1, -1], [-1, 0]], dtype=torch.int32)


def tokens(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


NUMBERS = (None, 3, None, 0.8, None, 0.1)
TENSORS = (K, None, P, None, P, None)
OPS = {
    "sample": (draw._sample, (PROBS, None, SEED, OFFSET, *NUMBERS, True, tokens(B))),
    "sample-tensors": (draw._sample, (PROBS, INDICES, SEED, OFFSET, *TENSORS, False, tokens(B))),
    "sample_logits": (
        draw._sample_logits,
        (PROBS, None, SEED, OFFSET, P, None, *NUMBERS, False, tokens(B)),
    ),
    "softmax": (transform._softmax, (PROBS.half(), None, 0.5, torch.empty(B, V))),
    "top_k_renorm": (transform._top_k_renorm, (PROBS, None, 3, torch.empty(B, V))),
    "top_p_renorm": (transform._top_p_renorm, (PROBS, P, None, torch.empty(B, V))),
    "top_k_mask_logits": (transform._top_k_mask_logits, (PROBS, K, None, torch.empty(B, V))),
    "top_k": (transform._top_k, (PROBS, torch.empty(B, 4), tokens(B, 4))),
    "chain_speculative": (
        speculative._chain,
        (CUBE[:, :N], IDS, CUBE, SEED, OFFSET, tokens(B, N + 1), tokens(B), tokens(B)),
    ),
    "tree_speculative": (
        speculative._tree,
        (IDS, PARENTS, CUBE, None, SEED, OFFSET, tokens(B, N), tokens(B), tokens(B)),
    ),
}


def by_op() -> dict[str, Any]:
    return {"argvalues": OPS.values(), "ids": OPS.keys()}


@pytest.mark.parametrize(("op", "args"), **by_op())
def test_is_a_well_formed_op(op: Any, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.overload, args)
    op.overload(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args))


def rng(seed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"seed": seed, "offset": seed}


COMPILED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "numbers": lambda x, s: sampling.sample(
        x, SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01), **rng(s)
    ),
    "tensors": lambda x, s: sampling.sample(
        x,
        SamplingParams(
            temperature=x.amax(-1), top_k=s.int() + 1, top_p=x.amax(-1), min_p=x.amin(-1)
        ),
        **rng(s),
    ),
    "logits": lambda x, s: sampling.top_k_top_p_sample_from_logits(
        x, 5, 0.9, order="joint", indices=s.int(), **rng(s)
    ),
    "probs": lambda x, s: sampling.top_k_top_p_sample_from_probs(x, 5, 0.9, **rng(s)),
    "top_k_sample": lambda x, s: sampling.top_k_sample(x, s.int() + 1, **rng(s)),
    "top_p_sample": lambda x, s: sampling.top_p_sample(x, 0.9, indices=s.int(), **rng(s)),
    "min_p_sample": lambda x, s: sampling.min_p_sample(x, 0.1, **rng(s)),
    "softmax": lambda x, s: sampling.softmax(x, temperature=s.float()),
    "top_k_renorm": lambda x, s: sampling.top_k_renorm(x, 5),
    "top_p_renorm": lambda x, s: sampling.top_p_renorm(x, 0.9),
    "top_k_mask_logits": lambda x, s: sampling.top_k_mask_logits(x, 5, out=x.clone()),
    "top_k": lambda x, s: sampling.top_k(x, 5),
    "chain": lambda x, s: sampling.chain_speculative_sampling(
        x[:, None], s.int()[:, None], torch.stack([x, x], 1), **rng(s)
    ),
    "tree": lambda x, s: sampling.tree_speculative_sampling(
        s.int()[:, None], s.int()[:, None] - s.int()[:, None] - 1, torch.stack([x, x], 1), **rng(s)
    ),
}


@pytest.mark.parametrize("function", COMPILED.values(), ids=COMPILED.keys())
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(function: Callable[..., Any], dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (3, 5):
        x = torch.randn(batch, V, generator=torch.Generator().manual_seed(batch)).softmax(-1)
        torch.testing.assert_close(
            compiled(x, torch.arange(batch)), function(x, torch.arange(batch)), rtol=0, atol=0
        )


def test_numbers_may_change_under_compile() -> None:
    torch.compiler.reset()

    def function(x: torch.Tensor, heat: float, k: int) -> torch.Tensor:
        return sampling.sample(x, SamplingParams(temperature=heat, top_k=k), **rng(SEED))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for heat, k in ((0.5, 3), (0.7, 4), (3.0, 5)):
        assert torch.equal(compiled(PROBS, heat, k), function(PROBS, heat, k))


BY_NUMBER: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "temperature": lambda x, p: sampling.sample(x, SamplingParams(temperature=p), **rng(SEED)),
    "top_k": lambda x, p: sampling.top_k_sample(x, p, **rng(SEED)),
    "top_p": lambda x, p: sampling.top_p_sample(x, p, **rng(SEED)),
    "min_p": lambda x, p: sampling.min_p_sample(x, p, **rng(SEED)),
    "softmax": lambda x, p: sampling.softmax(x, temperature=p),
    "top_k_renorm": sampling.top_k_renorm,
    "top_p_renorm": sampling.top_p_renorm,
    "top_k_mask_logits": sampling.top_k_mask_logits,
}


@pytest.mark.parametrize("name", BY_NUMBER)
def test_twelve_numbers_do_not_reach_the_limit_of_recompilations(name: str) -> None:
    """The compiler gives up at the ninth version of a function."""
    torch.compiler.reset()
    compiled = torch.compile(BY_NUMBER[name], fullgraph=True, backend="aot_eager")
    for i in range(12):
        number = i + 2 if "top_k" in name else 0.05 * (i + 1)
        assert torch.equal(compiled(PROBS, number), BY_NUMBER[name](PROBS, number))


@pytest.mark.parametrize("name", ["sample", "chain", "tree"])
def test_fresh_seeds_of_a_dynamic_batch(name: str) -> None:
    torch.compiler.reset()
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sample": sampling.sample_from_probs,
        "chain": lambda x: sampling.chain_speculative_sampling(
            x[:, None, :][:, :0], x[:, :0].int(), x[:, None]
        )[0],
        "tree": lambda x: sampling.tree_speculative_sampling(
            x[:, :0].int(), x[:, :0].int(), x[:, None]
        )[2],
    }
    compiled = torch.compile(calls[name], fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (4, 5, 7):
        tokens = compiled(torch.ones(batch, 2**16)).flatten()
        assert len(set(tokens.tolist())) == batch
        assert ((tokens >= 0) & (tokens < 2**16)).all()


def test_default_generator_under_compile() -> None:
    torch.compiler.reset()
    flat = torch.ones(B, 2**20)
    compiled = torch.compile(sampling.sample_from_probs, fullgraph=True, backend="aot_eager")
    assert len(set(torch.cat([compiled(flat), compiled(flat)]).tolist())) == 2 * B


@pytest.mark.parametrize(
    "op",
    [
        transform._softmax,
        transform._top_k_renorm,
        transform._top_p_renorm,
        transform._top_k_mask_logits,
        transform._top_k,
    ],
    ids=lambda op: op.name,
)
def test_a_strided_output_is_a_fact_of_the_problem(op: Any) -> None:
    """A kernel that trusts ``contiguous`` must not be handed a strided output."""
    x, strided = torch.ones(4, 8), torch.ones(4, 16)[:, :8]
    keys = set()
    for args in ((x, x), (x, strided), (strided, x)):
        call = (args[0], args[1], tokens(4, 8)) if op is transform._top_k else (args[0], 2, args[1])
        assert op._problem(*call).contiguous == all(t.is_contiguous() for t in args)
        keys.add((op._key(*call), op._problem(*call)))
    assert len({key for key, _ in keys}) == len({problem for _, problem in keys}) == 2


NAMES = [name for name in discovery.default().ops if name.startswith("sampling.")]


def test_all_ops_are_registered() -> None:
    compare = {
        name.removeprefix("sampling."): discovery.default().ops[name].compare for name in NAMES
    }
    assert compare == {
        "sample": "distribution",
        "sample_logits": "distribution",
        "softmax": "close",
        "top_k_renorm": "close",
        "top_p_renorm": "close",
        "top_k_mask_logits": "equal",
        "top_k": "equal",
        "chain_speculative": "distribution",
        "tree_speculative": "distribution",
    }


@pytest.mark.parametrize("name", NAMES)
def test_workloads_run_and_tell_their_work(name: str) -> None:
    cases = getattr(workloads, name.partition(".")[2])
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.work.bytes > 0
        if "small" in case.tags:
            run = case.make(torch.device("cpu"), torch.Generator().manual_seed(0))
            first, second = run(), run()
            torch.testing.assert_close(first, second, rtol=0, atol=0)
            tensors = first if isinstance(first, tuple) else (first,)
            assert all(len(x) == case.facts["batch"] for x in tensors)
            assert not any(x.isnan().any() for x in tensors if x.is_floating_point())


def test_problems_tell_their_work() -> None:
    decision = attnhub.explain(
        "sampling.sample", device="h200", vocab=128256, tokens=100, top_k=True
    )
    assert decision.chosen is not None
    chain = problem.ChainSpeculativeProblem.of("cpu", vocab=10, num_drafts=3, tokens=4)
    assert chain.work().bytes == 4 * 2 * 10 * 4
    tree = problem.TreeSpeculativeProblem.of("cpu", vocab=10, num_nodes=3, draft_probs=True)
    assert "assumed 32" in tree.work().assumed
    softmax = problem.SoftmaxProblem.of("cpu", vocab=10, dtype="bfloat16", tokens=2)
    assert softmax.work().bytes == 2 * 10 * 6
