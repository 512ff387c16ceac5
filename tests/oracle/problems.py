"""Small random problems over all feature combinations, by hypothesis or by seed.

The facts are in `facts`, their float64 rows in `values`, their tensors in `tensors`; all of that is
reached from here.

Example::

    @given(problems(kinds=("paged",)))
    def test_paged(problem):
        tensors, parameters = paged_tensors(problem), parameter_tensors(problem)
        out, lse = expected(problem)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st

from .attention import attend
from .facts import Features, Kind, RopeFacts, ScaleKind, SmallProblem, Storage
from .mods import KEY_MODS, MASK_MODS, OUTPUT_MODS, QUERY_MODS, SCORE_MODS
from .tensors import (
    BlockTensors,
    Cache,
    PagedTensors,
    ParameterTensors,
    RaggedTensors,
    VariableBlockTensors,
    block_tensors,
    paged_tensors,
    parameter_tensors,
    ragged_tensors,
    variable_block_tensors,
)
from .values import gathered

__all__ = [
    "ALL_KINDS",
    "FLOAT8",
    "BlockTensors",
    "Cache",
    "Features",
    "Kind",
    "PagedTensors",
    "ParameterTensors",
    "RaggedTensors",
    "RopeFacts",
    "ScaleKind",
    "SmallProblem",
    "Storage",
    "VariableBlockTensors",
    "block_tensors",
    "expected",
    "gathered",
    "paged_tensors",
    "parameter_tensors",
    "problems",
    "ragged_tensors",
    "random_problem",
    "variable_block_tensors",
]

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
"""Picks one of the options; the first is the simplest, and what hypothesis shrinks to."""

ALL_KINDS: tuple[Kind, ...] = ("ragged", "paged", "blocks", "variable_blocks")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@st.composite
def problems(draw: st.DrawFn, kinds: Sequence[Kind] = ALL_KINDS) -> SmallProblem:
    """Return a strategy for problems of these kinds, simplest first."""
    return _build(lambda options: draw(st.sampled_from(options)), kinds)


def random_problem(seed: int, kinds: Sequence[Kind] = ALL_KINDS) -> SmallProblem:
    """Return the problem of that seed, the same on every run."""
    random = np.random.default_rng(seed)
    return _build(lambda options: options[int(random.integers(len(options)))], kinds)


def expected(problem: SmallProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the oracle's `out` `[tokens, heads, dim_vo]` and `lse` `[tokens, heads]`, float64."""
    results = attend(gathered(problem))
    out = np.concatenate(
        [np.empty((0, problem.num_qo_heads, problem.head_dim_vo)), *(r.out for r in results)]
    )
    lse = np.concatenate([np.empty((0, problem.num_qo_heads)), *(r.lse for r in results)])
    return torch.from_numpy(out), torch.from_numpy(lse)


def _build(choose: Choose, kinds: Sequence[Kind]) -> SmallProblem:
    kind: Kind = choose(kinds)
    # Variable blocks describe one sequence, every other kind a batch.
    batch = 1 if kind == "variable_blocks" else choose((1, 2, 3, 4, 2, 3, 4, 0))
    group = choose((1, 2, 3, 4, 7))
    dim_qk, dim_vo = choose(((4, 4), (1, 1), (2, 2), (8, 8), (4, 2), (2, 8)))
    q_dtype = choose(("float32", "float16", "bfloat16"))
    kv_dtype = choose((q_dtype, q_dtype, *FLOAT8))
    return SmallProblem(
        seed=choose(range(1000)),
        lens=tuple((choose(range(6)), choose(range(10))) for _ in range(batch)),
        num_kv_heads=choose((1, 2, 3) if group <= 3 else (1, 2)),
        group=group,
        head_dim_qk=dim_qk,
        head_dim_vo=dim_vo,
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
        storage=_storage(choose, kind, equal_dims=dim_qk == dim_vo),
        features=_features(choose, dim_qk, scaled=kv_dtype in FLOAT8),
    )


def _storage(choose: Choose, kind: Kind, *, equal_dims: bool) -> Storage:
    layout, strided = choose(("NHD", "HND")), choose((False, True))
    if kind == "blocks":
        block = (choose(range(1, 5)), choose(range(1, 5)))
        return Storage(kind=kind, layout=layout, strided=strided, block=block)
    if kind != "paged":
        return Storage(kind=kind, layout=layout, strided=strided)
    return Storage(
        kind=kind,
        layout=layout,
        strided=strided,
        page_size=choose((1, 2, 3, 5)),
        joined=choose((True, False)) if equal_dims else False,
        spare_pages=choose(range(3)),
    )


def _features(choose: Choose, dim_qk: int, *, scaled: bool) -> Features:
    """Return features, most of them off more often than on, so that few meet and all occur."""
    softmax = choose((True, True, True, False))
    return Features(
        scale=choose((None, None, 0.7)),
        causal=choose((False, True)),
        window=choose(((-1, -1), (-1, -1), (-1, -1), (2, -1), (-1, 1), (3, 0), (0, 0))),
        soft_cap=_seldom(choose, (0.5, 5.0)),
        alibi=choose((False, False, True)),
        sinks=choose((False, False, True)) if softmax else False,
        custom_mask=choose((False, False, True)),
        rope=_rope(choose, dim_qk) if dim_qk > 1 and choose((False, False, True)) else None,
        scales=choose((None, "scalar", "per_head")) if scaled else None,
        query_mod=_seldom(choose, tuple(QUERY_MODS)),
        key_mod=_seldom(choose, tuple(KEY_MODS)),
        score_mod=_seldom(choose, tuple(SCORE_MODS)),
        mask_mod=_seldom(choose, tuple(MASK_MODS)),
        output_mod=_seldom(choose, tuple(OUTPUT_MODS)),
        softmax=softmax,
    )


def _rope(choose: Choose, dim_qk: int) -> RopeFacts:
    return RopeFacts(
        theta=choose((10000.0, 10.0)),
        interleaved=choose((False, True)),
        rotary_dim=choose((None, 2, dim_qk)),
        offsets=choose((False, True)),
        inv_freq=choose((False, False, True)),
    )


def _seldom(choose: Choose, options: Sequence[T]) -> T | None:
    """Return None three times in four, else one of the options."""
    return choose(options) if choose((True, True, True, False)) is False else None
