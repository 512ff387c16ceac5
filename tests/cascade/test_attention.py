"""Cascade attention against one attention over the same keys in one page table per request."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import attnhub
from attnhub.attn import BatchAttention, DTypes, GraphLimits, Paged, PagedKV, Ragged, Scales
from attnhub.cascade import CascadeAttention
from attnhub.errors import BackendUnsupported, InvalidArgument, NotPlanned, UnknownName
from attnhub.testing import generators
from attnhub.testing.compare import assert_close
from attnhub.variant import Rope, Variant

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
CAUSAL = Variant(causal=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Each level: query rows of its groups, keys of its groups; shared first."""

    levels: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    variant: Variant = CAUSAL
    heads: tuple[int, int] = (HEADS, KV_HEADS)
    dims: tuple[int, int] = (DIM, DIM)
    dtypes: DTypes = field(default_factory=lambda: DTypes("float32", "float32", "float32"))
    layout: str = "NHD"
    combined: bool = True
    scales: Scales = field(default_factory=Scales)


TWO = (((9,), (22,)), ((2, 1, 6), (5, 1, 9)))
THREE = (((8,), (13,)), ((3, 5), (6, 3)), ((1, 1, 1, 2, 3), (7, 1, 4, 1, 8)))
CASES = {
    "two-levels-causal": Case(levels=TWO),
    "two-levels-full": Case(levels=TWO, variant=Variant()),
    "three-levels": Case(levels=THREE),
    "one-level": Case(levels=TWO[1:]),
    "decode": Case(levels=(((5,), (33,)), ((1,) * 5, (1, 2, 3, 4, 5)))),
    "empty-suffixes-one-row-each": Case(levels=(((3,), (9,)), ((1, 1, 1), (0, 4, 0)))),
    "all-suffixes-empty": Case(levels=(((3,), (9,)), ((1, 1, 1), (0, 0, 0)))),
    "suffix-one-key-short": Case(levels=(((5,), (6,)), ((2, 3), (1, 2)))),
    "empty-prefixes": Case(levels=(((2, 3), (0, 5)), ((2, 3), (6, 3)))),
    "no-key-at-all": Case(levels=(((1, 2), (0, 4)), ((1, 2), (0, 2)))),
    "short-suffix-without-prefix": Case(levels=(((3, 1), (0, 8)), ((3, 1), (1, 1)))),
    "requests-without-rows": Case(levels=(((0, 4), (5, 7)), ((0, 3, 0, 1), (2, 3, 0, 1)))),
    "no-rows": Case(levels=(((0,), (5,)), ((0, 0), (2, 0)))),
    "middle-level-empty": Case(levels=(((4,), (5,)), ((3, 1), (0, 0)), ((1, 2, 1), (2, 3, 1)))),
    "one-head": Case(levels=TWO, heads=(1, 1)),
    "no-groups": Case(levels=TWO, heads=(3, 3)),
    "wide-groups": Case(levels=THREE, heads=(8, 1)),
    "soft-cap-and-scale": Case(levels=THREE, variant=Variant(causal=True, soft_cap=2.0, scale=0.7)),
    "hnd": Case(levels=TWO, layout="HND"),
    "two-dims": Case(levels=TWO, dims=(24, 8), combined=False),
    "bfloat16": Case(levels=THREE, dtypes=DTypes("bfloat16", "bfloat16", "bfloat16")),
    "float16": Case(levels=THREE, dtypes=DTypes("float16", "float16", "float16")),
    "float8-cache": Case(
        levels=TWO,
        dtypes=DTypes("bfloat16", "float8_e4m3fn", "bfloat16"),
        scales=Scales(k=0.5, v=torch.tensor([2.0, 0.25])),
    ),
}
BY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def torch_dtype(name: Any) -> torch.dtype:
    return getattr(torch, str(name))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    q: torch.Tensor
    cache: Any
    levels: list[tuple[torch.Tensor, PagedKV]]
    flat_cache: Any
    flat: tuple[torch.Tensor, PagedKV]


def paged(
    rows: list[tuple[torch.Tensor, torch.Tensor]], case: Case, generator: torch.Generator
) -> tuple[Any, PagedKV]:
    """A cache, poisoned where no request owns it, that holds the (k, v) rows of each request."""
    lengths = [k.shape[0] for k, _ in rows]
    table = generators.page_table(lengths, PAGE, generator=generator)
    k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
    cache = generators.paged_cache(
        k, v, lengths, table, layout=case.layout, combined=case.combined, strided=True
    )
    return cache, PagedKV(table.indptr, table.indices, table.last_page_len)


def rows_of(table: PagedKV, start: int, stop: int) -> PagedKV:
    """Requests start:stop of a page table."""
    first, last = int(table.indptr[start]), int(table.indptr[stop])
    indptr = table.indptr[start : stop + 1] - table.indptr[start]
    return PagedKV(indptr, table.indices[first:last], table.last_page_len[start:stop])


def make(case: Case) -> Inputs:
    generator = generators.seeded(7)
    (heads, kv_heads), (dim_qk, dim_vo) = case.heads, case.dims
    kv_dtype = torch_dtype(case.dtypes.kv)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(
            generators.random_tensor((count, kv_heads, dim), kv_dtype, "cpu", generator)
            for dim in (dim_qk, dim_vo)
        )  # type: ignore[return-value]

    groups = [[rows(length) for length in kv_lens] for _, kv_lens in case.levels]
    cache, table = paged([pair for level in groups for pair in level], case, generator)
    starts = generators.indptr([len(level) for level in groups]).tolist()
    levels = [
        (generators.indptr(qo_lens), rows_of(table, *bounds))
        for (qo_lens, _), bounds in zip(case.levels, itertools.pairwise(starts), strict=True)
    ]
    # A request's own keys come after those of every group that holds its rows.
    flat_rows = []
    for request, (first, last) in enumerate(itertools.pairwise(levels[-1][0].tolist())):
        parts = [
            level[owner(indptr, first, last)]
            for level, (indptr, _) in zip(groups[:-1], levels[:-1], strict=True)
            if last > first
        ]
        pairs = [*parts, groups[-1][request]]
        flat_rows.append(tuple(torch.cat(side) for side in zip(*pairs, strict=True)))
    flat_cache, flat_table = paged(flat_rows, case, generator)
    shape = (int(levels[0][0][-1]), heads, dim_qk)
    return Inputs(
        q=generators.random_tensor(shape, torch_dtype(case.dtypes.q), "cpu", generator),
        cache=cache,
        levels=levels,
        flat_cache=flat_cache,
        flat=(levels[-1][0], flat_table),
    )


def owner(indptr: torch.Tensor, first: int, last: int) -> int:
    """The group that holds the rows first:last."""
    return next(g for g in range(len(indptr) - 1) if indptr[g] <= first < last <= indptr[g + 1])


def attention_of(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What both constructors share."""
    positional = (*case.heads, case.dims, case.dtypes, Paged(PAGE, case.layout))
    return positional, {"variant": case.variant, "device": "cpu"}


def cascade_of(case: Case, **changed: Any) -> CascadeAttention:
    positional, named = attention_of(case)
    return CascadeAttention(*positional, **{"levels": len(case.levels), **named, **changed})


def flat_result(case: Case, inputs: Inputs) -> Any:
    positional, named = attention_of(case)
    attn = BatchAttention(*positional, **named)
    attn.plan(*inputs.flat)
    return attn.run(inputs.q, inputs.flat_cache, scales=case.scales, return_lse=True)


# --- values ---------------------------------------------------------------------------------------


@BY_CASE
def test_equals_flat_attention(case: Case) -> None:
    inputs = make(case)
    cascade = cascade_of(case)
    cascade.plan(inputs.levels)
    o, lse = cascade.run(inputs.q, inputs.cache, scales=case.scales, return_lse=True)
    expected, expected_lse = flat_result(case, inputs)
    assert o.dtype == torch_dtype(case.dtypes.out)
    assert_close(o, expected, name="o")
    assert_close(lse, expected_lse, dtype=torch_dtype(case.dtypes.q), kind="lse", name="lse")


def test_out_and_no_lse() -> None:
    case = CASES["three-levels"]
    inputs = make(case)
    cascade = cascade_of(case)
    cascade.plan(inputs.levels)
    out = torch.full((8, HEADS, DIM), torch.nan)
    assert cascade.run(inputs.q, inputs.cache, out=out) is out
    assert_close(out, flat_result(case, inputs)[0])


def test_one_object_takes_batch_after_batch() -> None:
    cascade = cascade_of(CASES["two-levels-causal"])
    for name in ("decode", "two-levels-causal", "empty-prefixes"):
        inputs = make(CASES[name])
        cascade.plan(inputs.levels, max_qo_lens=[9, 6], max_kv_lens=[40, None], validate=True)
        assert_close(cascade.run(inputs.q, inputs.cache), flat_result(CASES[name], inputs)[0])


def test_graph_mode_pads_with_zeros() -> None:
    case = CASES["two-levels-causal"]
    inputs = make(case)
    limits = [
        GraphLimits(max_batch=2, max_qo_tokens=12, max_pages=10),
        GraphLimits(max_batch=4, max_qo_tokens=12, max_pages=20),
    ]
    cascade = cascade_of(case, levels=limits)
    cascade.plan(inputs.levels)
    q = torch.cat([inputs.q, torch.ones(3, HEADS, DIM)])
    o, lse = cascade.run(q, inputs.cache, return_lse=True)
    expected, expected_lse = flat_result(case, inputs)
    assert_close(o[:9], expected)
    assert_close(lse[:9], expected_lse, kind="lse")
    assert not o[9:].any()
    assert bool((lse[9:] == -torch.inf).all())


def test_compiles_whole() -> None:
    torch.compiler.reset()
    case = CASES["three-levels"]
    inputs = make(case)
    cascade = cascade_of(case)
    cascade.plan(inputs.levels)

    def step(q: torch.Tensor, cache: torch.Tensor) -> Any:
        return cascade.run(q * 1.0, cache, return_lse=True)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(
        compiled(inputs.q, inputs.cache), step(inputs.q, inputs.cache), strict=True
    ):
        assert torch.equal(got, want)
    # The next batch needs no new graph.
    cascade.plan([(indptr, rows_of(table, 0, len(indptr) - 1)) for indptr, table in inputs.levels])
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(inputs.q, inputs.cache)[0], step(inputs.q, inputs.cache)[0])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        pytest.param(Variant(causal=True, window=(8, 0)), "window", id="window"),
        pytest.param(Variant(alibi=True), "alibi", id="alibi"),
        pytest.param(Variant(sinks=True), "sinks", id="sinks"),
        pytest.param(Variant(rope=Rope()), "rope", id="rope"),
        pytest.param(Variant(softmax=False), "softmax_off", id="softmax-off"),
        pytest.param(Variant(score_mod=lambda s, b, h, i, j: s + j), "score_mod", id="score_mod"),
        pytest.param(Variant(mask_mod=lambda b, h, i, j: j % 2 == 0), "mask_mod", id="mask_mod"),
        pytest.param(Variant(query_mod=lambda x, b, h, i, d: x * i), "query_mod", id="query_mod"),
        pytest.param(Variant(key_mod=lambda x, b, h, j, d: x * j), "key_mod", id="key_mod"),
        pytest.param(
            Variant(output_mod=lambda x, b, h, i, d: x * 2), "output_mod", id="output_mod"
        ),
        pytest.param(Variant(alibi=True, sinks=True), "alibi, sinks", id="two-of-them"),
    ],
)
def test_variants_that_do_not_split_are_refused(variant: Variant, named: str) -> None:
    message = f"variant uses {named}, which does not split .* use causal, soft_cap and scale"
    with pytest.raises(InvalidArgument, match=message):
        cascade_of(Case(levels=TWO, variant=variant))


def test_bad_constructor_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="levels=0: needs at least one level"):
        cascade_of(Case(levels=TWO), levels=0)
    with pytest.raises(InvalidArgument, match="share one paged cache; give Paged"):
        CascadeAttention(4, 2, 16, "float32", Ragged(), levels=2, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no multiple"):
        cascade_of(Case(levels=TWO, heads=(3, 2)))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        pytest.param(TWO[:1], "levels has 1 entries, but this cascade has 2 levels", id="too-few"),
        pytest.param(
            (((8,), (22,)), TWO[1]), r"ends at \[8, 9\]; every level must cover all rows", id="rows"
        ),
        pytest.param(
            (((3,), (9,)), ((2, 1), (0, 4))),
            "group 0 of the last level has 2 query rows but 0 keys, .* some keys of level 0; move "
            "keys .* at least 1",
            id="suffix-too-short-for-causal",
        ),
        pytest.param(
            (((1, 3), (0, 9)), ((1, 3), (0, 1))),
            "group 1 of the last level has 3 query rows",
            id="second-suffix-too-short",
        ),
    ],
)
def test_levels_that_contradict_each_other_are_refused(levels: Any, message: str) -> None:
    cascade = cascade_of(Case(levels=TWO))
    given = make_levels(levels)
    cascade.plan(make_levels(TWO))
    with pytest.raises(InvalidArgument, match=message):
        cascade.plan(given)
    # Neither the old batch nor a mixture of both may run.
    with pytest.raises(NotPlanned, match=r"call plan\(\[\(qo_indptr, table\)"):
        cascade.run(torch.zeros(9, HEADS, DIM), torch.zeros(30, 2, PAGE, KV_HEADS, DIM))


def make_levels(levels: Any) -> list[tuple[torch.Tensor, PagedKV]]:
    """Levels that need not fit each other, pages in order."""
    tables = [
        generators.page_table(kv_lens, PAGE, generator=generators.seeded(0))
        for _, kv_lens in levels
    ]
    return [
        (generators.indptr(qo_lens), PagedKV(t.indptr, t.indices, t.last_page_len))
        for (qo_lens, _), t in zip(levels, tables, strict=True)
    ]


def test_a_short_suffix_is_no_fault_without_causal() -> None:
    case = Case(levels=(((3,), (9,)), ((2, 1), (0, 4))), variant=Variant())
    inputs = make(case)
    cascade = cascade_of(case)
    cascade.plan(inputs.levels)
    assert_close(cascade.run(inputs.q, inputs.cache), flat_result(case, inputs)[0])


def test_errors_name_the_level() -> None:
    cascade = cascade_of(Case(levels=TWO))
    (first, table), (second, other) = make_levels(TWO)
    short = PagedKV(other.indptr, other.indices, other.last_page_len[:1])
    with pytest.raises(InvalidArgument, match="level 1: last_page_len has shape"):
        cascade.plan([(first, table), (second, short)])
    with pytest.raises(InvalidArgument, match="level 0: max_qo_len=5 but the longest"):
        cascade.plan([(first, table), (second, other)], max_qo_lens=[5, None])
    with pytest.raises(InvalidArgument, match="max_kv_lens has 1 entries"):
        cascade.plan([(first, table), (second, other)], max_kv_lens=[50])


def test_each_level_explains_itself() -> None:
    cascade = cascade_of(Case(levels=THREE))
    with pytest.raises(NotPlanned):
        cascade.explain()
    cascade.plan(make(Case(levels=THREE)).levels)
    decisions = cascade.explain()
    assert len(decisions) == 3
    assert all(decision.op == "attention" for decision in decisions)
    assert "causal" not in decisions[0].problem
    assert "causal" in decisions[2].problem


def test_backend_is_required_of_every_level() -> None:
    inputs = make(Case(levels=TWO))
    cascade = cascade_of(Case(levels=TWO), backend="reference")
    cascade.plan(inputs.levels)
    assert [decision.chosen.name for decision in cascade.explain()] == ["reference"] * 2
    with pytest.raises((UnknownName, BackendUnsupported)):
        cascade_of(Case(levels=TWO), backend="no_such_backend").plan(inputs.levels)


def test_is_exported() -> None:
    assert attnhub.cascade.CascadeAttention is CascadeAttention
