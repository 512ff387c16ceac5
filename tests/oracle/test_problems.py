"""The generator: its tensors hold the very rows that the oracle gets, and nothing beside them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from .attention import Array
from .mods import KEY_MODS, MASK_MODS, OUTPUT_MODS, QUERY_MODS, SCORE_MODS
from .problems import (
    ALL_KINDS,
    FLOAT8,
    Cache,
    Features,
    Kind,
    RaggedTensors,
    RopeFacts,
    SmallProblem,
    Storage,
    block_tensors,
    expected,
    gathered,
    paged_tensors,
    parameter_tensors,
    problems,
    ragged_tensors,
    random_problem,
    variable_block_tensors,
)

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def float64(rows: torch.Tensor) -> Array:
    """Return the numbers a tensor holds."""
    array: Array = rows.to(torch.float64).numpy()
    return array


def planes(problem: SmallProblem, cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as `[pages, page, kv_heads, dim]`."""
    if isinstance(cache, torch.Tensor):
        cache = cache[:, 0], cache[:, 1]
    keys, values = cache
    if problem.storage.layout == "HND":
        return keys.transpose(1, 2), values.transpose(1, 2)
    return keys, values


def assert_ragged(problem: SmallProblem, tensors: RaggedTensors) -> None:
    """Check that each request's slice of the tensors is what the oracle gets."""
    k, v = tensors.k, tensors.v
    if problem.storage.layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    for b, request in enumerate(gathered(problem).requests):
        queries = slice(int(tensors.qo_indptr[b]), int(tensors.qo_indptr[b + 1]))
        keys = slice(int(tensors.kv_indptr[b]), int(tensors.kv_indptr[b + 1]))
        np.testing.assert_array_equal(float64(tensors.q[queries]), request.q)
        np.testing.assert_array_equal(float64(k[keys]), request.k)
        np.testing.assert_array_equal(float64(v[keys]), request.v)
    assert len(tensors.q) == tensors.qo_indptr[-1]
    assert len(k) == len(v) == tensors.kv_indptr[-1]


@MANY
@given(problems(kinds=("paged",)))
def test_pages_hold_the_rows_and_nan_elsewhere(problem: SmallProblem) -> None:
    tensors, size = paged_tensors(problem), problem.storage.page_size
    keys, values = planes(problem, tensors.cache)
    owned = torch.zeros(keys.shape[:2], dtype=torch.bool)
    for b, request in enumerate(gathered(problem).requests):
        first, last = int(tensors.indptr[b]), int(tensors.indptr[b + 1])
        pages = tensors.indices[first:last].tolist()
        kv_len = (len(pages) - 1) * size + int(tensors.last_page_len[b]) if pages else 0
        assert kv_len == problem.lens[b][1]
        for j in range(kv_len):
            page, slot = pages[j // size], j % size
            np.testing.assert_array_equal(float64(keys[page, slot]), request.k[j])
            np.testing.assert_array_equal(float64(values[page, slot]), request.v[j])
            assert not owned[page, slot]
            owned[page, slot] = True
    for plane in (keys, values):
        assert not plane.to(torch.float32)[owned].isnan().any()
        assert plane.to(torch.float32)[~owned].isnan().all()
    assert len(keys) == len(tensors.indices) + problem.storage.spare_pages


@MANY
@given(problems(kinds=("ragged", "blocks", "variable_blocks")))
def test_ragged_rows_lie_end_to_end(problem: SmallProblem) -> None:
    assert_ragged(problem, ragged_tensors(problem))


@MANY
@given(problems(kinds=("blocks",)))
def test_block_lists_cover_the_block_mask(problem: SmallProblem) -> None:
    tensors, (rows, cols) = block_tensors(problem), problem.storage.block
    first_row = 0
    for request, (qo_len, kv_len) in zip(gathered(problem).requests, problem.lens, strict=True):
        seen = np.zeros((qo_len, kv_len), dtype=np.bool_)
        for row in range(math.ceil(qo_len / rows)):
            begin, end = tensors.block_indptr[first_row + row : first_row + row + 2].tolist()
            for column in tensors.block_indices[begin:end].tolist():
                assert column * cols < kv_len
                seen[row * rows : (row + 1) * rows, column * cols : (column + 1) * cols] = True
        assert request.block_mask is not None
        np.testing.assert_array_equal(request.block_mask[0], seen)
        first_row += math.ceil(qo_len / rows)
    assert len(tensors.block_indptr) == first_row + 1


@MANY
@given(problems(kinds=("variable_blocks",)))
def test_variable_blocks_cover_the_block_mask(problem: SmallProblem) -> None:
    tensors = variable_block_tensors(problem)
    (request,) = gathered(problem).requests
    assert request.block_mask is not None
    for g in range(problem.num_kv_heads):
        by_row = tensors.block_map[g].repeat_interleave(tensors.row_sizes[g], dim=0)
        seen = by_row.repeat_interleave(tensors.col_sizes[g], dim=1)
        np.testing.assert_array_equal(request.block_mask[g], seen.numpy())


@MANY
@given(problems())
def test_oracle_answers_every_problem_with_numbers(problem: SmallProblem) -> None:
    out, lse = expected(problem)
    tokens = sum(qo_len for qo_len, _ in problem.lens)
    assert out.shape == (tokens, problem.num_qo_heads, problem.head_dim_vo)
    assert lse.shape == out.shape[:2]
    assert out.isfinite().all()
    if problem.features.softmax:
        unseen = lse == -math.inf
        assert (lse.isfinite() | unseen).all()
        assert (out[unseen] == 0).all()
    else:
        assert lse.isnan().all()


def test_masks_pack_each_request_to_whole_bytes() -> None:
    features = Features(custom_mask=True)
    problem = SmallProblem(seed=3, lens=((3, 3), (0, 5), (1, 8)), features=features)
    parameters = parameter_tensors(problem)
    assert parameters.masks is not None
    assert parameters.flat_mask is not None
    assert parameters.packed_mask is not None
    assert parameters.flat_mask.shape == (3 * 3 + 0 + 1 * 8,)
    assert parameters.packed_mask.shape == (2 + 0 + 1,)
    bits = [(int(byte) >> bit) & 1 for byte in parameters.packed_mask for bit in range(8)]
    flat = parameters.flat_mask.int().tolist()
    assert bits[:9] == flat[:9]
    assert bits[9:16] == [0] * 7
    assert bits[16:] == flat[9:]
    for mask, request in zip(parameters.masks, gathered(problem).requests, strict=True):
        assert request.custom_mask is not None
        np.testing.assert_array_equal(mask.numpy(), request.custom_mask)


def test_parameters_are_those_the_oracle_gets() -> None:
    features = Features(
        alibi=True,
        sinks=True,
        scales="per_head",
        rope=RopeFacts(offsets=True, inv_freq=True),
    )
    problem = SmallProblem(
        seed=5, lens=((1, 2), (2, 1)), num_kv_heads=2, group=3, features=features
    )
    parameters, oracle = parameter_tensors(problem), gathered(problem)
    assert oracle.rope is not None
    for tensor, array, count in (
        (parameters.alibi_slopes, oracle.alibi_slopes, 6),
        (parameters.sinks, oracle.sinks, 6),
        (parameters.q_scale, oracle.q_scale, 6),
        (parameters.k_scale, oracle.k_scale, 2),
        (parameters.v_scale, oracle.v_scale, 2),
        (parameters.inv_freq, oracle.rope.inv_freq, 2),
    ):
        assert isinstance(tensor, torch.Tensor)
        assert isinstance(array, np.ndarray)
        assert tensor.dtype == torch.float32
        assert len(array) == count
        np.testing.assert_array_equal(float64(tensor), array)
    assert parameters.q_offset is not None
    assert parameters.k_offset is not None
    assert parameters.q_offset.tolist() == [request.q_offset for request in oracle.requests]
    assert parameters.k_offset.tolist() == [request.k_offset for request in oracle.requests]


@pytest.mark.parametrize("dtype", [*FLOAT8, "bfloat16", "float16", "float32"])
def test_oracle_sees_what_the_dtype_can_hold(dtype: str) -> None:
    problem = SmallProblem(seed=1, lens=((1, 5),), kv_dtype=dtype)
    (request,) = gathered(problem).requests
    for rows in (request.k, request.v):
        again = torch.from_numpy(rows).to(getattr(torch, dtype))
        np.testing.assert_array_equal(float64(again), rows)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("joined", [True, False], ids=["5-D", "tuple"])
def test_strided_caches_keep_only_the_last_dim_dense(layout: str, joined: bool) -> None:
    storage = Storage(layout="HND" if layout == "HND" else "NHD", joined=joined, page_size=3)
    problem = SmallProblem(seed=0, lens=((1, 4),), num_kv_heads=2, storage=storage)
    loose = dataclasses.replace(problem, storage=dataclasses.replace(storage, strided=True))
    dense_cache, loose_cache = paged_tensors(problem).cache, paged_tensors(loose).cache
    pairs = zip(planes(problem, dense_cache), planes(loose, loose_cache), strict=True)
    for dense, strided in pairs:
        np.testing.assert_array_equal(float64(dense), float64(strided))
        assert strided.stride(-1) == 1
        assert not strided.is_contiguous()
    whole = dense_cache if isinstance(dense_cache, torch.Tensor) else dense_cache[0]
    heads_and_slots = (2, 3, 4) if layout == "HND" else (3, 2, 4)
    assert whole.shape == ((2, 2) if joined else (2,)) + heads_and_slots


def test_every_feature_occurs_and_is_absent() -> None:
    drawn = [random_problem(seed) for seed in range(300)]
    assert {problem.storage.kind for problem in drawn} == set(ALL_KINDS)
    assert {problem.group for problem in drawn} == {1, 2, 3, 4, 7}
    assert {len(problem.lens) for problem in drawn} == {0, 1, 2, 3, 4}
    assert any(qo_len > kv_len > 0 for problem in drawn for qo_len, kv_len in problem.lens)
    for field in dataclasses.fields(Features):
        values = {getattr(problem.features, field.name) for problem in drawn}
        assert len(values) >= 2, f"{field.name} is always {values}"
    for field in dataclasses.fields(Storage):
        values = {getattr(problem.storage, field.name) for problem in drawn}
        assert len(values) >= 2, f"{field.name} is always {values}"


def test_a_seed_gives_the_same_problem_and_numbers() -> None:
    first, second = random_problem(17), random_problem(17)
    assert first == second
    assert hash(first) == hash(second)
    assert torch.equal(expected(first)[0], expected(second)[0])


def test_streams_are_apart_and_features_do_not_move_them() -> None:
    plain = SmallProblem(seed=2, lens=((3, 3), (3, 3)))
    every = Features(alibi=True, sinks=True, custom_mask=True, rope=RopeFacts(offsets=True))
    first, second = gathered(plain).requests
    rows = [getattr(request, name) for request in (first, second) for name in "qkv"]
    for index, one in enumerate(rows):
        assert not any(np.array_equal(one, other) for other in rows[index + 1 :])
    (again, _) = gathered(dataclasses.replace(plain, features=every)).requests
    for name in "qkv":
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_tensors_of_another_kind_are_refused(kind: Kind) -> None:
    problem = SmallProblem(seed=0, lens=((1, 1),), storage=Storage(kind=kind))
    makers: dict[Kind, Callable[[SmallProblem], object]] = {
        "paged": paged_tensors,
        "blocks": block_tensors,
        "variable_blocks": variable_block_tensors,
    }
    for name, make in makers.items():
        if name == kind:
            make(problem)
        else:
            with pytest.raises(ValueError, match=f"a problem of kind '{kind}'"):
                make(problem)


def test_impossible_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="joined cache with head dims 4 and 2"):
        paged_tensors(SmallProblem(seed=0, lens=(), head_dim_vo=2))
    two = SmallProblem(seed=0, lens=((1, 1),) * 2, storage=Storage(kind="variable_blocks"))
    with pytest.raises(ValueError, match="variable blocks with 2 requests"):
        gathered(two)
    with pytest.raises(ValueError, match="'float33' is not a dtype"):
        gathered(SmallProblem(seed=0, lens=((1, 1),), q_dtype="float33"))


def test_mods_give_tensors_what_they_give_numbers() -> None:
    b, h, q_idx, kv_idx = 2, 1, 3, 5
    places = [torch.tensor(place) for place in (b, h, q_idx, kv_idx)]
    x = torch.tensor(1.5, dtype=torch.float64)
    for score_mod in SCORE_MODS.values():
        assert float(score_mod(x, *places)) == score_mod(1.5, b, h, q_idx, kv_idx)
    for mask_mod in MASK_MODS.values():
        assert bool(mask_mod(*places)) == mask_mod(b, h, q_idx, kv_idx)
    for element_mod in (*QUERY_MODS.values(), *KEY_MODS.values(), *OUTPUT_MODS.values()):
        assert float(element_mod(x, *places[:3])) == element_mod(1.5, b, h, q_idx)
        if element_mod in OUTPUT_MODS.values():
            assert element_mod(0.0, b, h, q_idx) == 0.0
