"""Latent attention in its absorbed form as float64 loops: every head reads one shared latent row.

Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1. The latent row is both key and value, a
separate small row carries the rotary part of the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .attention import Array, Result, softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaRequest:
    """One request: `q_nope` `[n, heads, dim_ckv]`, `q_pe` `[n, heads, dim_kpe]`, and its key rows.

    The key rows are `ckv` `[m, dim_ckv]` and `kpe` `[m, dim_kpe]`.
    """

    q_nope: Array
    q_pe: Array
    ckv: Array
    kpe: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaOracleProblem:
    """Requests and their softmax scale; no default, as `dim_ckv` is not the model's head dim."""

    requests: tuple[MlaRequest, ...]
    scale: float
    causal: bool = False


def attend_mla(problem: MlaOracleProblem) -> list[Result]:
    """Return `out` `[n, heads, dim_ckv]` and natural-log `lse` `[n, heads]` per request, float64.

    A query that sees no key gives output 0 and LSE -inf. Causal is aligned to the last key.

    Example::

        request = MlaRequest(q_nope=np.ones((1, 2, 4)), q_pe=np.ones((1, 2, 2)),
                             ckv=np.ones((3, 4)), kpe=np.ones((3, 2)))
        (result,) = attend_mla(MlaOracleProblem(requests=(request,), scale=0.5))
    """
    return [_attend_request(problem, request) for request in problem.requests]


def _attend_request(problem: MlaOracleProblem, request: MlaRequest) -> Result:
    num_queries, num_heads, dim_ckv = request.q_nope.shape
    num_keys = len(request.ckv)
    out = np.zeros((num_queries, num_heads, dim_ckv))
    lse = np.full((num_queries, num_heads), -math.inf)
    for i in range(num_queries):
        last_key = i + num_keys - num_queries if problem.causal else num_keys - 1
        for h in range(num_heads):
            scores = {}
            for j in range(last_key + 1):
                latent = float(request.q_nope[i, h] @ request.ckv[j])
                rotary = float(request.q_pe[i, h] @ request.kpe[j])
                scores[j] = problem.scale * (latent + rotary)
            weights, lse[i, h] = softmax(scores, sink=None)
            for j, weight in weights.items():
                out[i, h] += weight * request.ckv[j]
    return Result(out, lse)
