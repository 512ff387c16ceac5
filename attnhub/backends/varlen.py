"""``torch_varlen``: ragged batches by torch's own FlashAttention, one launch a batch.

The kernel computes in float16 or bfloat16 only. A call whose scales it would have to round on the
way goes to ``torch_sdpa``'s plan, which computes that in float32.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnhub.attn.batch import AttentionBatch
from attnhub.attn.kv import RaggedKV, Scales
from attnhub.attn.problem import AttentionProblem
from attnhub.backends import sdpa
from attnhub.backends.precision import without_autocast
from attnhub.core.staging import Staging


class _Plan:
    """Holds the cumulative lengths on the device."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        self._device = torch.device(problem.device.type, problem.device.index)
        self._staging = Staging(self._device)
        self._batch: AttentionBatch | None = None
        self._exact: sdpa.Plan | None = None

    def update(self, batch: AttentionBatch) -> None:
        assert isinstance(batch.kv, RaggedKV)
        assert batch.qo_lens is not None  # the sheet takes host metadata only
        assert batch.kv_lens is not None
        self._batch, self._exact = batch, None
        self._qo_indptr = self._staging.on_device(batch.qo_indptr)
        self._kv_indptr = self._staging.on_device(batch.kv.indptr)
        self._longest = (batch.max_qo_len or 0, batch.max_kv_len or 0)
        self._blind = self._rows_without_keys(batch.qo_lens, batch.kv_lens)

    def _rows_without_keys(self, qo_lens: Sequence[int], kv_lens: Sequence[int]) -> Tensor | None:
        """Bool ``[tokens]``, or None if every row sees a key: the kernel leaves their LSE open."""
        left, right = self._problem.variant.band
        if all(m and (right < 0 or n <= m) for n, m in zip(qo_lens, kv_lens, strict=True)) and (
            left < 0 or right >= 0
        ):
            return None
        blind = [
            not _sees_a_key(i + m - n, m, left, right)
            for n, m in zip(qo_lens, kv_lens, strict=True)
            for i in range(n)
        ]
        return self._staging.on_device(torch.tensor(blind, dtype=torch.bool, device="cpu"))

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
        from torch.nn.attention import varlen

        if sdpa.rounds_twice(q, out, scales):
            self._in_float32().run(q, k, v, out, lse, mask, scales, params)
            return
        scale = sdpa.softmax_scale(self._problem)
        for number in (scales.q, scales.k):
            assert not isinstance(number, Tensor)  # those round
            scale *= number
        if self._problem.layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        if not q.shape[0] or not self._longest[1]:
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        gqa: dict[str, Any] = {"enable_gqa": True} if _takes_enable_gqa() else {}
        o, logs = varlen.varlen_attn(
            q,
            k,
            v,
            self._qo_indptr,
            self._kv_indptr,
            *self._longest,
            scale=scale,
            window_size=self._problem.variant.band,
            return_aux=varlen.AuxRequest(lse=True),
            **gqa,
        )
        out.copy_(o)
        if lse is not None:
            lse.copy_(logs.T)
        if self._blind is not None:
            out.masked_fill_(self._blind[:, None, None], 0.0)
            if lse is not None:
                lse.masked_fill_(self._blind[:, None], -math.inf)

    def _in_float32(self) -> sdpa.Plan:
        """The same batch as planned by SDPA, made on the first call that needs it."""
        if self._exact is None:
            assert self._batch is not None
            self._exact = sdpa.Plan(self._problem)
            self._exact.update(self._batch)
        return self._exact


def _sees_a_key(position: int, kv_len: int, left: int, right: int) -> bool:
    first = 0 if left < 0 else max(0, position - left)
    last = kv_len - 1 if right < 0 else min(kv_len - 1, position + right)
    return first <= last


@functools.cache
def _takes_enable_gqa() -> bool:
    """Whether the kernel wants to be told of GQA; torch 2.11 infers it from the shapes."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


class _Planner:
    def plan(self, problem: AttentionProblem) -> _Plan:
        """A plan for ragged batches on one GPU."""
        return _Plan(problem)


attention = _Planner()
