"""``attention`` by its reference, request by request. Serves every feature there is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from attnhub.attn import rows
from attnhub.attn.batch import AttentionBatch
from attnhub.attn.kv import Scales
from attnhub.attn.problem import AttentionProblem
from attnhub.attn.reference import Request, attend
from attnhub.backends.precision import without_autocast


class _Plan:
    """Holds the batch; all work is in ``run``."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        self._batch: AttentionBatch | None = None

    def update(self, batch: AttentionBatch) -> None:
        self._batch = batch

    @without_autocast
    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        scales: Scales,
        params: Mapping[str, Tensor | float],
    ) -> None:
        if self._batch is None:
            self._dense(q, k, v, out, lse, mask, scales, params)
            return
        found = []  # written when all is read: out may be q
        for r in rows.requests(self._batch, self._problem, k, v):
            request = Request(
                index=r.index,
                q_offset=r.q_offset,
                k_offset=r.k_offset,
                visible=r.visible,
                scales=scales,
                params=params,
            )
            found.append(attend(q[r.rows], r.k, r.v, self._problem.variant, request))
        rows.write(found, out, lse)

    def _dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        scales: Scales,
        params: Mapping[str, Tensor | float],
    ) -> None:
        for b in range(q.shape[0]):
            visible = mask[b] if mask is not None and mask.dim() == 3 else mask
            request = Request(index=b, visible=visible, scales=scales, params=params)
            o, s = attend(q[b], k[b], v[b], self._problem.variant, request)
            out[b] = o.to(out.dtype)
            if lse is not None:
                lse[b] = s.float()


class _Planner:
    def plan(self, problem: AttentionProblem) -> _Plan:
        """A plan that keeps nothing but the batch."""
        return _Plan(problem)


attention = _Planner()
