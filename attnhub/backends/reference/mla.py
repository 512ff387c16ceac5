"""``mla`` by its reference, request by request."""

from __future__ import annotations

import math

from torch import Tensor

from attnhub.attn import rows
from attnhub.attn.batch import AttentionBatch
from attnhub.attn.problem import AttentionProblem
from attnhub.mla.inputs import MLAScales
from attnhub.mla.problem import MLAProblem
from attnhub.mla.reference import attend


class _Plan:
    """Holds the batch; all work is in ``run``."""

    def __init__(self, problem: MLAProblem) -> None:
        self._causal = "causal" in problem.features
        self._paged = _as_attention(problem)
        self._batch: AttentionBatch | None = None

    def update(self, batch: AttentionBatch) -> None:
        self._batch = batch

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv: Tensor,
        kpe: Tensor,
        out: Tensor,
        lse: Tensor | None,
        scale: float,
        scales: MLAScales,
    ) -> None:
        assert self._batch is not None
        out.zero_()  # rows that no request owns
        if lse is not None:
            lse.fill_(-math.inf)
        for r in rows.requests(self._batch, self._paged, ckv, kpe):
            o, s = attend(
                q_nope[r.rows],
                q_pe[r.rows],
                r.k,
                r.v,
                scale=scale,
                causal=self._causal,
                scales=scales,
            )
            out[r.rows] = o.to(out.dtype)
            if lse is not None:
                lse[r.rows] = s.float()


def _as_attention(problem: MLAProblem) -> AttentionProblem:
    """The attention that this is, with which ``rows`` reads the page table: one KV head."""
    return AttentionProblem(
        device=problem.device,
        extent=problem.extent,
        kv="paged",
        num_qo_heads=problem.num_heads,
        num_kv_heads=1,
        head_dim_qk=problem.head_dim_ckv + problem.head_dim_kpe,
        head_dim_vo=problem.head_dim_ckv,
        q_dtype=problem.q_dtype,
        kv_dtype=problem.kv_dtype,
        out_dtype=problem.out_dtype,
        page_size=problem.page_size,
    )


class _Planner:
    def plan(self, problem: MLAProblem) -> _Plan:
        """A plan that keeps nothing but the batch."""
        return _Plan(problem)


mla = _Planner()
