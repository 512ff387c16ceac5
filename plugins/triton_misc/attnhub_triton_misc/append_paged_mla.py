"""Appending to the paged latent cache of MLA: one head, of two widths."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnhub_triton_misc.append import Append, Entries, Pages, Places, Table


class _Plan:
    def __init__(self, problem: Any) -> None:
        self._append = Append(problem, 1, (problem.dim_ckv, problem.dim_kpe))

    def run(
        self,
        ckv: Tensor,
        kpe: Tensor,
        ckv_cache: Tensor,
        kpe_cache: Tensor,
        indptr: Tensor,
        indices: Tensor,
        batch_indices: Tensor,
        positions: Tensor,
    ) -> None:
        ckv, kpe, ckv_cache, kpe_cache = self._append.pointers(ckv, kpe, ckv_cache, kpe_cache)
        self._append.launch(
            (_entries(ckv), _pages(ckv_cache)),
            (_entries(kpe), _pages(kpe_cache)),
            Table(indptr, indices, indptr.shape[0] - 1, indices.shape[0], ckv_cache.shape[0]),
            Places(batch_indices, positions, positions.shape[0]),
        )


def _entries(new: Tensor) -> Entries:
    return Entries(new, new.stride(0), 0)


def _pages(cache: Tensor) -> Pages:
    return Pages(cache, cache.stride(0), cache.stride(1), 0)


class _AppendPagedMLA:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


append_paged_mla = _AppendPagedMLA()
