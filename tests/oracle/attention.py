"""Attention as loops over requests, heads, queries and keys, in float64, to be right by reading.

The steps follow Vaswani et al., "Attention Is All You Need" (2017), with grouped heads (Ainslie et
al., 2023), rotary embedding (Su et al., "RoFormer", 2021), linear biases (Press et al., "ALiBi",
2021) and a sink logit in the softmax denominator (Xiao et al., "StreamingLLM", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# The arguments are numbers here and may be tensors elsewhere, so `Any` is the honest type.
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
"""`(score, b, h, q_idx, kv_idx) -> score`."""
MaskMod = Callable[[Any, Any, Any, Any], Any]
"""`(b, h, q_idx, kv_idx) -> bool`."""
ElementMod = Callable[[Any, Any, Any, Any], Any]
"""`(x, b, h, idx) -> x` on one element; `h` and `idx` are those of the row it belongs to."""


class Result(NamedTuple):
    """One request's `out` `[qo_len, heads, dim_vo]` and natural-log `lse` `[qo_len, heads]`."""

    out: Array
    lse: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of the first `rotary_dim` elements (all of them when None).

    Pair `t` turns by `position * inv_freq[t]`; `inv_freq` `[rotary_dim // 2]` is
    `theta ** (-2t / rotary_dim)` unless given. Pairs are `(2t, 2t+1)` when `interleaved`, else
    `(t, t + rotary_dim // 2)`.
    """

    theta: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    inv_freq: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request's rows: `q` `[n, heads, dim_qk]`, `k` and `v` `[m, kv_heads, dim]`.

    `v` may have another dim, `dim_vo`. `custom_mask` is `[n, m]`, `block_mask` is
    `[kv_heads or 1, n, m]`; True means visible. The offsets are the RoPE positions of the first
    query (`m - n` when None) and of the first key.
    """

    q: Array
    k: Array
    v: Array
    custom_mask: BoolArray | None = None
    block_mask: BoolArray | None = None
    q_offset: int | None = None
    k_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleProblem:
    """Requests and what is computed on them; scales are one number or one per (qo or kv) head.

    `scale` is `1 / sqrt(dim_qk)` when None; a negative `window` side is open.
    """

    requests: tuple[Request, ...]
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    soft_cap: float | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    rope: Rope | None = None
    q_scale: float | Array = 1.0
    k_scale: float | Array = 1.0
    v_scale: float | Array = 1.0
    query_mod: ElementMod | None = None
    key_mod: ElementMod | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    output_mod: ElementMod | None = None
    softmax: bool = True

    def __post_init__(self) -> None:
        """Refuse heads that do not group, and sinks that no softmax would use."""
        if self.sinks is not None and not self.softmax:
            raise ValueError(
                "sinks given with softmax=False: a sink is a term of the softmax denominator; "
                "drop the sinks or keep the softmax"
            )
        for b, request in enumerate(self.requests):
            heads, kv_heads = request.q.shape[1], request.k.shape[1]
            if heads % kv_heads:
                raise ValueError(
                    f"request {b} has {heads} query heads and {kv_heads} kv heads: the first must "
                    "be a multiple of the second; give each kv head the same number of query heads"
                )


def attend(problem: OracleProblem) -> list[Result]:
    """Return `out` and `lse` of every request, float64.

    A query that sees no key gives output 0 and LSE -inf, with a sink and an `output_mod` too. With
    `softmax=False` the LSE has no meaning and is NaN.

    Example::

        q, k, v = np.ones((1, 2, 4)), np.ones((3, 1, 4)), np.ones((3, 1, 4))
        (result,) = attend(OracleProblem(requests=(Request(q=q, k=k, v=v),)))
    """
    return [_attend_request(problem, b) for b in range(len(problem.requests))]


def _attend_request(problem: OracleProblem, b: int) -> Result:
    request = problem.requests[b]
    num_queries, num_heads, _ = request.q.shape
    num_keys, num_kv_heads, dim_vo = request.v.shape
    group = num_heads // num_kv_heads
    keys = [[_key(problem, b, j, g) for j in range(num_keys)] for g in range(num_kv_heads)]
    out = np.zeros((num_queries, num_heads, dim_vo))
    lse = np.full((num_queries, num_heads), -math.inf if problem.softmax else math.nan)
    for i in range(num_queries):
        for h in range(num_heads):
            query = _query(problem, b, i, h)
            scores = {
                j: _score(problem, b, h, i, j, dot=float(query @ keys[h // group][j]))
                for j in range(num_keys)
                if is_visible(problem, b, h, i, j)
            }
            weights: Mapping[int, float] = scores
            if problem.softmax:
                sink = None if problem.sinks is None else float(problem.sinks[h])
                weights, lse[i, h] = softmax(scores, sink)
            if weights:
                out[i, h] = _output(problem, b, h, i, weights)
    return Result(out, lse)


def q_index(request: Request, i: int) -> int:
    """Return where query `i` stands among the keys: the last query stands at the last key."""
    return i + len(request.k) - len(request.q)


def is_visible(problem: OracleProblem, b: int, h: int, i: int, j: int) -> bool:
    """Return whether query `i` of head `h` sees key `j`: every mask must allow it."""
    request = problem.requests[b]
    position = q_index(request, i)
    left, right = problem.window
    if problem.causal and j > position:
        return False
    if left >= 0 and j < position - left:
        return False
    if right >= 0 and j > position + right:
        return False
    if problem.mask_mod is not None and not problem.mask_mod(b, h, position, j):
        return False
    if request.custom_mask is not None and not request.custom_mask[i, j]:
        return False
    if request.block_mask is not None:
        kv_head = h // (request.q.shape[1] // request.k.shape[1])
        plane = kv_head if len(request.block_mask) > 1 else 0
        return bool(request.block_mask[plane, i, j])
    return True


def softmax(scores: Mapping[int, float], sink: float | None) -> tuple[dict[int, float], float]:
    """Return the weight of each key and the LSE; no weights and -inf when every score is -inf.

    The sink adds to the denominator, hence to the LSE, and has no value row.
    """
    top = max(scores.values(), default=-math.inf)
    if top == -math.inf:
        return {}, -math.inf
    terms = {j: math.exp(score - top) for j, score in scores.items()}
    total = math.fsum(terms.values())
    if sink is not None:
        total += math.exp(sink - top)
    return {j: term / total for j, term in terms.items()}, top + math.log(total)


def _score(problem: OracleProblem, b: int, h: int, i: int, j: int, *, dot: float) -> float:
    request = problem.requests[b]
    position = q_index(request, i)
    scale = problem.scale
    if scale is None:
        scale = 1.0 / math.sqrt(request.q.shape[2])
    score = scale * dot
    if problem.soft_cap is not None:
        score = problem.soft_cap * math.tanh(score / problem.soft_cap)
    if problem.alibi_slopes is not None:
        score += float(problem.alibi_slopes[h]) * (j - position)
    if problem.score_mod is not None:
        score = float(problem.score_mod(score, b, h, position, j))
    return score


def _query(problem: OracleProblem, b: int, i: int, h: int) -> Array:
    request = problem.requests[b]
    position = q_index(request, i)
    row = request.q[i, h] * _of_head(problem.q_scale, h)
    row = _modified(problem.query_mod, row, b, h, position)
    if problem.rope is None:
        return row
    turned = position if request.q_offset is None else request.q_offset + i
    return rotated(row, turned, problem.rope)


def _key(problem: OracleProblem, b: int, j: int, kv_head: int) -> Array:
    request = problem.requests[b]
    row = request.k[j, kv_head] * _of_head(problem.k_scale, kv_head)
    row = _modified(problem.key_mod, row, b, kv_head, j)
    if problem.rope is None:
        return row
    return rotated(row, request.k_offset + j, problem.rope)


def _output(problem: OracleProblem, b: int, h: int, i: int, weights: Mapping[int, float]) -> Array:
    request = problem.requests[b]
    kv_head = h // (request.q.shape[1] // request.k.shape[1])
    row = np.zeros(request.v.shape[2])
    for j, weight in weights.items():
        row = row + weight * request.v[j, kv_head]
    row = row * _of_head(problem.v_scale, kv_head)
    return _modified(problem.output_mod, row, b, h, q_index(request, i))


def rotated(row: Array, position: int, rope: Rope) -> Array:
    """Return `row` `[dim]` with each pair turned by its angle at `position`."""
    rotary_dim = len(row) if rope.rotary_dim is None else rope.rotary_dim
    half = rotary_dim // 2
    turned = row.copy()
    for t in range(half):
        first, second = (2 * t, 2 * t + 1) if rope.interleaved else (t, t + half)
        if rope.inv_freq is None:
            angle = position * rope.theta ** (-2.0 * t / rotary_dim)
        else:
            angle = position * float(rope.inv_freq[t])
        cos, sin = math.cos(angle), math.sin(angle)
        turned[first] = row[first] * cos - row[second] * sin
        turned[second] = row[second] * cos + row[first] * sin
    return turned


def _of_head(scale: float | Array, head: int) -> float:
    return float(scale[head]) if isinstance(scale, np.ndarray) else float(scale)


def _modified(mod: ElementMod | None, row: Array, b: int, h: int, idx: int) -> Array:
    if mod is None:
        return row
    return np.array([float(mod(float(x), b, h, idx)) for x in row])
