"""``mla`` by its reference, request by request."""

from __future__ import annotations

from torch import Tensor

from attnhub.attn import rows
from attnhub.attn.batch import AttentionBatch
from attnhub.attn.problem import AttentionProblem
from attnhub.backends.precision import without_autocast
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

    @without_autocast
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
        found = []  # written when all is read: out may be q_nope
        for r in rows.requests(self._batch, self._paged, ckv, kpe):
            o_and_lse = attend(
                q_nope[r.rows],
                q_pe[r.rows],
                r.k,
                r.v,
                scale=scale,
                causal=self._causal,
                scales=scales,
            )
            found.append(o_and_lse)
        rows.write(found, out, lse)


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
