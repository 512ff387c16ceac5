"""The oracle against sums done by hand, and against torch once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from .attention import Array, OracleProblem, Request, Result, Rope, attend, rotated
from .mla import MlaOracleProblem, MlaRequest, attend_mla

LN2, LN3 = math.log(2.0), math.log(3.0)


def column(values: list[float]) -> Array:
    """Return one head of dim 1: `[len, 1, 1]`."""
    return np.array(values, dtype=np.float64).reshape(-1, 1, 1)


def run(q: list[float], k: list[float], v: list[float], **features: Any) -> Result:
    """Attend with one head of dim 1, where a score is simply `q * k`."""
    per_request = {f: features.pop(f) for f in ("custom_mask", "block_mask") if f in features}
    request = Request(q=column(q), k=column(k), v=column(v), **per_request)
    return attend(OracleProblem(requests=(request,), **features))[0]


def assert_result(result: Result, out: list[float], lse: list[float]) -> None:
    """Compare one head of dim 1 with numbers."""
    np.testing.assert_allclose(result.out.reshape(-1), out, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(result.lse.reshape(-1), lse, rtol=1e-14, atol=1e-15)


def test_softmax_of_two_queries_and_two_keys() -> None:
    # Scores [[ln 3, 0], [0, ln 2]]: weights [3/4, 1/4] and [1/3, 2/3], sums 4 and 3.
    q = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    k = np.array([[[LN3, 0.0]], [[0.0, LN2]]])
    v = np.array([[[4.0, 0.0, 8.0]], [[0.0, 12.0, 4.0]]])
    (result,) = attend(OracleProblem(requests=(Request(q=q, k=k, v=v),), scale=1.0))
    np.testing.assert_allclose(result.out[:, 0], [[3.0, 3.0, 7.0], [4 / 3, 8.0, 16 / 3]])
    np.testing.assert_allclose(result.lse[:, 0], [math.log(4.0), LN3])


def test_default_scale_is_one_over_root_of_dim() -> None:
    q, k, v = np.full((1, 1, 4), LN3 / 2), np.ones((2, 1, 4)), np.array([[[4.0]], [[8.0]]])
    k[1] = 0.0
    (result,) = attend(OracleProblem(requests=(Request(q=q, k=k, v=v),)))
    np.testing.assert_allclose(result.out, [[[5.0]]])  # 4 * ln3 / 2 / sqrt(4) = ln 3: weights 3:1
    np.testing.assert_allclose(result.lse, [[math.log(4.0)]])


@pytest.mark.parametrize(
    ("queries", "keys", "out", "lse"),
    [
        pytest.param(2, 2, [1.0, 1.5], [0.0, LN2], id="equal: the usual triangle"),
        pytest.param(1, 3, [2.0], [LN3], id="decode: the only query stands last"),
        pytest.param(2, 3, [1.5, 2.0], [LN2, LN3], id="append: the first query misses the last"),
        pytest.param(3, 1, [0, 0, 1.0], [-math.inf, -math.inf, 0.0], id="early queries see none"),
        pytest.param(2, 0, [0, 0], [-math.inf, -math.inf], id="no keys at all"),
    ],
)
def test_causal_is_aligned_to_the_last_key(
    queries: int, keys: int, out: list[float], lse: list[float]
) -> None:
    values = [float(j + 1) for j in range(keys)]
    assert_result(run([0.0] * queries, [0.0] * keys, values, causal=True), out, lse)


@pytest.mark.parametrize(
    ("window", "causal", "seen"),
    [
        pytest.param((-1, -1), False, [[0, 1, 2, 3], [0, 1, 2, 3]], id="open"),
        pytest.param((1, -1), False, [[1, 2, 3], [2, 3]], id="left only"),
        pytest.param((-1, 0), False, [[0, 1, 2], [0, 1, 2, 3]], id="right 0 is causal"),
        pytest.param((0, 0), False, [[2], [3]], id="only itself"),
        pytest.param((1, 1), True, [[1, 2], [2, 3]], id="causal cuts the right side"),
    ],
)
def test_window_is_inclusive_around_the_position(
    window: tuple[int, int], causal: bool, seen: list[list[int]]
) -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    result = run([0.0] * 2, [0.0] * 4, values, window=window, causal=causal)
    means = [sum(values[j] for j in row) / len(row) for row in seen]
    assert_result(result, means, [math.log(len(row)) for row in seen])


def test_sink_takes_weight_and_counts_in_the_lse() -> None:
    # Two keys of score 0 and a sink of ln 2: weights 1/4 each, the sum is 4.
    result = run([0.0], [0.0, 0.0], [4.0, 12.0], sinks=np.array([LN2]))
    assert_result(result, [4.0], [math.log(4.0)])


def test_sink_does_not_make_an_unseen_row_seen() -> None:
    result = run([0.0, 0.0], [0.0], [5.0], sinks=np.array([0.0]), causal=True)
    assert_result(result, [0.0, 2.5], [-math.inf, LN2])


def test_alibi_counts_from_the_query_position() -> None:
    # Two queries, three keys: positions 1 and 2. Slope ln 2 halves a key per step back.
    result = run([0.0, 0.0], [0.0] * 3, [1.0, 2.0, 4.0], alibi_slopes=np.array([LN2]))
    # Query 0: weights 1/2, 1, 2; query 1: weights 1/4, 1/2, 1.
    lse = [math.log(3.5), math.log(1.75)]
    assert_result(result, [(0.5 + 2 + 8) / 3.5, (0.25 + 1 + 4) / 1.75], lse)


def test_soft_cap_comes_after_the_scale_and_before_alibi() -> None:
    cap, slope = 2.0, 3.0
    features = {"scale": 0.5, "soft_cap": cap, "alibi_slopes": np.array([slope])}
    one = run([4.0], [1.0], [1.0], **features)
    assert_result(one, [1.0], [cap * math.tanh(1.0)])  # one key: distance 0
    two = run([4.0], [1.0, 0.0], [1.0, 0.0], **features)
    score = cap * math.tanh(1.0) - slope
    assert_result(two, [1 / (1 + math.exp(-score))], [math.log(1 + math.exp(score))])


def test_score_mod_sees_positions_and_comes_after_alibi() -> None:
    calls: list[tuple[float, int, int, int, int]] = []

    def mod(score: float, b: int, h: int, q_idx: int, kv_idx: int) -> float:
        calls.append((score, b, h, q_idx, kv_idx))
        return math.log(kv_idx + 1.0)

    result = run([1.0], [1.0, 2.0], [3.0, 6.0], score_mod=mod, alibi_slopes=np.array([0.5]))
    assert calls == [(0.5, 0, 0, 1, 0), (2.0, 0, 0, 1, 1)]
    assert_result(result, [5.0], [LN3])


def test_scores_of_minus_infinity_leave_a_row_unseen() -> None:
    result = run([1.0], [1.0], [3.0], score_mod=lambda *_: -math.inf, sinks=np.array([1.0]))
    assert_result(result, [0.0], [-math.inf])


def test_mask_mod_sees_positions() -> None:
    calls: list[tuple[int, int, int, int]] = []

    def mod(b: int, h: int, q_idx: int, kv_idx: int) -> bool:
        calls.append((b, h, q_idx, kv_idx))
        return q_idx != kv_idx

    result = run([0.0, 0.0], [0.0] * 3, [1.0, 2.0, 4.0], mask_mod=mod)
    assert calls == [(0, 0, q_idx, kv_idx) for q_idx in (1, 2) for kv_idx in range(3)]
    assert_result(result, [2.5, 1.5], [LN2, LN2])


def test_masks_are_all_needed() -> None:
    def not_the_first(b: int, h: int, q_idx: int, kv_idx: int) -> bool:
        return kv_idx != 0

    custom = np.array([[True, True, False, True], [True, True, True, False]])
    result = run(
        [0.0] * 2,
        [0.0] * 4,
        [1.0, 2.0, 4.0, 8.0],
        causal=True,  # query 0 stands at 2, query 1 at 3
        custom_mask=custom,
        mask_mod=not_the_first,
    )
    assert_result(result, [2.0, 3.0], [0.0, LN2])


def test_block_mask_is_per_kv_head_or_for_all() -> None:
    q, k, v = np.zeros((1, 4, 1)), np.zeros((2, 2, 1)), np.array([[[1.0], [3.0]], [[2.0], [5.0]]])
    per_head = np.array([[[True, False]], [[True, True]]])
    for mask, out in ((per_head, [1, 1, 4, 4]), (per_head[:1], [1, 1, 3, 3])):
        (result,) = attend(OracleProblem(requests=(Request(q=q, k=k, v=v, block_mask=mask),)))
        assert result.out.reshape(-1).tolist() == out


def test_without_softmax_the_scores_are_the_weights() -> None:
    result = run([2.0, 2.0], [1.0, 3.0], [5.0, 7.0], scale=1.0, softmax=False, causal=True)
    assert_result(result, [10.0, 52.0], [math.nan, math.nan])


def test_scales_are_per_head_and_multiply_what_is_stored() -> None:
    q, k, v = np.ones((1, 2, 1)), np.array([[[1.0]], [[0.0]]]), np.array([[[4.0]], [[8.0]]])
    (result,) = attend(
        OracleProblem(
            requests=(Request(q=q, k=k, v=v),),
            q_scale=np.array([1.0, 2.0]),
            k_scale=np.array([LN3]),
            v_scale=0.5,
        )
    )
    # Scores ln 3 and 2 ln 3 against 0: weights 3:1 and 9:1, values 2 and 4.
    np.testing.assert_allclose(result.out.reshape(-1), [2.5, 2.2])
    np.testing.assert_allclose(result.lse.reshape(-1), np.log([4.0, 10.0]))


def test_element_mods_come_after_the_scales() -> None:
    def plus_index(x: float, b: int, h: int, idx: int) -> float:
        return x + idx

    def minus_index(x: float, b: int, h: int, idx: int) -> float:
        return x - idx

    result = run(
        [1.0],
        [1.0, 2.0],
        [1.0, 3.0],
        scale=1.0,
        softmax=False,
        q_scale=2.0,
        v_scale=10.0,
        query_mod=plus_index,  # 2 + 1
        key_mod=minus_index,  # 1, 1
        output_mod=plus_index,  # 3 * 10 + 9 * 10 + 1
    )
    assert_result(result, [121.0], [math.nan])


def test_an_unseen_row_is_zero_after_an_output_mod_too() -> None:
    def plus_one(x: float, b: int, h: int, idx: int) -> float:
        return x + 1.0

    result = run([0.0], [], [], output_mod=plus_one)
    assert_result(result, [0.0], [-math.inf])


@pytest.mark.parametrize(
    ("rope", "turned"),
    [
        pytest.param(
            Rope(inv_freq=np.array([math.pi / 4, 0.0])), [-3.0, 2.0, 1.0, 4.0], id="halves"
        ),
        pytest.param(
            Rope(inv_freq=np.array([math.pi / 4, 0.0]), interleaved=True),
            [-2.0, 1.0, 3.0, 4.0],
            id="neighbours",
        ),
        pytest.param(
            Rope(inv_freq=np.array([math.pi / 2]), rotary_dim=2),
            [-1.0, -2.0, 3.0, 4.0],
            id="only the first two",
        ),
    ],
)
def test_rope_turns_pairs(rope: Rope, turned: list[float]) -> None:
    row = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(rotated(row, 2, rope), turned, atol=1e-15)


def test_rope_frequencies_follow_from_theta() -> None:
    row, explicit = np.array([1.0, 2.0, 3.0, 4.0]), Rope(inv_freq=np.array([1.0, 0.5]))
    np.testing.assert_allclose(rotated(row, 3, Rope(theta=4.0)), rotated(row, 3, explicit))


@pytest.mark.parametrize(
    ("q_offset", "k_offset", "distances"),
    [
        pytest.param(None, 0, [[1, 0, -1], [2, 1, 0]], id="default: last query at last key"),
        pytest.param(5, 0, [[5, 4, 3], [6, 5, 4]], id="queries further on"),
        pytest.param(5, 3, [[2, 1, 0], [3, 2, 1]], id="keys further on too"),
    ],
)
def test_rope_scores_depend_on_the_distance(
    q_offset: int | None, k_offset: int, distances: list[list[int]]
) -> None:
    # Unit rows that start equal: the dot product is the cosine of the angle between them.
    request = Request(
        q=np.tile([1.0, 0.0], (2, 1, 1)),
        k=np.tile([1.0, 0.0], (3, 1, 1)),
        v=np.eye(3)[:, None, :],
        q_offset=q_offset,
        k_offset=k_offset,
    )
    rope = Rope(inv_freq=np.array([0.1]))
    (result,) = attend(OracleProblem(requests=(request,), rope=rope, scale=1.0, softmax=False))
    np.testing.assert_allclose(result.out[:, 0], np.cos(0.1 * np.array(distances)))


def test_requests_do_not_meet() -> None:
    one = Request(q=column([0.0]), k=column([0.0]), v=column([3.0]))
    none = Request(q=column([]), k=column([0.0]), v=column([4.0]))
    seen: list[int] = []

    def mod(score: float, b: int, h: int, q_idx: int, kv_idx: int) -> float:
        seen.append(b)
        return score

    results = attend(OracleProblem(requests=(one, none, one), score_mod=mod))
    assert [result.out.reshape(-1).tolist() for result in results] == [[3.0], [], [3.0]]
    assert seen == [0, 2]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_agrees_with_torch_in_float64(causal: bool) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((5, heads, 4)) for heads in (6, 2, 2))
    (result,) = attend(OracleProblem(requests=(Request(q=q, k=k, v=v),), causal=causal))
    tq, tk, tv = (torch.from_numpy(rows).transpose(0, 1)[None] for rows in (q, k, v))
    other = torch.nn.functional.scaled_dot_product_attention(
        tq, tk, tv, is_causal=causal, enable_gqa=True
    )
    np.testing.assert_allclose(result.out, other[0].transpose(0, 1).numpy(), rtol=1e-12)


def test_impossible_problems_are_refused() -> None:
    request = Request(q=np.zeros((1, 3, 1)), k=np.zeros((1, 2, 1)), v=np.zeros((1, 2, 1)))
    with pytest.raises(ValueError, match="3 query heads and 2 kv heads"):
        OracleProblem(requests=(request,))
    with pytest.raises(ValueError, match="sinks given with softmax=False"):
        OracleProblem(requests=(), sinks=np.zeros(1), softmax=False)


def test_mla_by_hand() -> None:
    # Scores 0.5 * (latent + rotary): [ln 3, 0]: weights 3:1, and the output mixes the latent rows.
    request = MlaRequest(
        q_nope=np.array([[[LN3, 0.0]]]),
        q_pe=np.array([[[LN3]]]),
        ckv=np.array([[1.0, 8.0], [0.0, 4.0]]),
        kpe=np.array([[1.0], [0.0]]),
    )
    (result,) = attend_mla(MlaOracleProblem(requests=(request,), scale=0.5))
    np.testing.assert_allclose(result.out, [[[0.75, 7.0]]])
    np.testing.assert_allclose(result.lse, [[math.log(4.0)]])


def test_mla_is_attention_with_one_kv_head_on_joined_rows() -> None:
    random = np.random.default_rng(1)
    for queries, keys in ((2, 5), (3, 2), (2, 0)):
        request = MlaRequest(
            q_nope=random.standard_normal((queries, 3, 4)),
            q_pe=random.standard_normal((queries, 3, 2)),
            ckv=random.standard_normal((keys, 4)),
            kpe=random.standard_normal((keys, 2)),
        )
        joined = Request(
            q=np.concatenate([request.q_nope, request.q_pe], axis=-1),
            k=np.concatenate([request.ckv, request.kpe], axis=-1)[:, None],
            v=request.ckv[:, None],
        )
        (mla,) = attend_mla(MlaOracleProblem(requests=(request,), scale=0.3, causal=True))
        (plain,) = attend(OracleProblem(requests=(joined,), scale=0.3, causal=True))
        np.testing.assert_allclose(mla.out, plain.out, rtol=1e-12)
        np.testing.assert_allclose(mla.lse, plain.lse, rtol=1e-12)
