"""``attnhub.page`` by its reference."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from attnhub.attn.kv import Scales
from attnhub.backends.reference import Reference
from attnhub.page import reference
from attnhub.page.problem import RopeAppendPagedKVProblem
from attnhub.page.reference import Layout


def _append_paged_kv(
    k_new: Tensor,
    v_new: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    layout: Layout,
) -> None:
    reference.append(
        k_new,
        v_new,
        batch_indices,
        positions,
        k_cache,
        v_cache,
        indptr=indptr,
        indices=indices,
        layout=layout,
    )


class _RopeAppendPagedKV:
    def plan(self, problem: RopeAppendPagedKVProblem) -> Reference:
        """A plan that holds the pairing and the layout."""

        def run(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            cos_sin_cache: Tensor,
            q_out: Tensor,
            k_cache: Tensor,
            v_cache: Tensor,
            scales: Scales,
            *where: Tensor,
        ) -> None:
            indptr, indices, batch_indices, positions = where
            turned = reference.rope_append(
                (q, k, v),
                cos_sin_cache,
                (k_cache, v_cache),
                batch_indices,
                positions,
                table=(indptr, indices),
                scales=scales,
                q_dtype=q_out.dtype,
                interleaved=problem.interleaved,
                layout=cast("Layout", problem.layout),
            )
            q_out.copy_(turned)

        return Reference(run)


def _append_paged_mla(
    ckv: Tensor,
    kpe: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
) -> None:
    reference.append_mla(
        ckv,
        kpe,
        batch_indices,
        positions,
        ckv_cache,
        kpe_cache,
        indptr=indptr,
        indices=indices,
    )


def _get_batch_indices_positions(
    append_indptr: Tensor, seq_lens: Tensor, batch_indices: Tensor, positions: Tensor
) -> None:
    found = reference.batch_indices_positions(append_indptr, seq_lens, positions.shape[0])
    batch_indices.copy_(found[0])
    positions.copy_(found[1])


def _get_seq_lens(indptr: Tensor, last_page_len: Tensor, out: Tensor, page_size: int) -> None:
    out.copy_(reference.seq_lens(indptr, last_page_len, page_size))


append_paged_kv = Reference(_append_paged_kv)
rope_append_paged_kv = _RopeAppendPagedKV()
append_paged_mla = Reference(_append_paged_mla)
get_batch_indices_positions = Reference(_get_batch_indices_positions)
get_seq_lens = Reference(_get_seq_lens)
