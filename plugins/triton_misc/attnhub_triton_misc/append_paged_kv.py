"""Appending keys and values to a paged cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnhub_triton_misc.append import Append, Entries, Pages, Places, Table


class _Plan:
    def __init__(self, problem: Any) -> None:
        p = problem
        dims = (p.head_dim_qk, p.head_dim_vo)
        self._append = Append(p, p.num_kv_heads, dims)

    def run(
        self,
        k_new: Tensor,
        v_new: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        indptr: Tensor,
        indices: Tensor,
        batch_indices: Tensor,
        positions: Tensor,
        layout: str,
    ) -> None:
        k_new, v_new, k_cache, v_cache = self._append.pointers(k_new, v_new, k_cache, v_cache)
        self._append.launch(
            (_entries(k_new), _pages(k_cache, layout)),
            (_entries(v_new), _pages(v_cache, layout)),
            Table(indptr, indices, indptr.shape[0] - 1, indices.shape[0], k_cache.shape[0]),
            Places(batch_indices, positions, positions.shape[0]),
        )


def _entries(new: Tensor) -> Entries:
    token, head, _ = new.stride()
    return Entries(new, token, head)


def _pages(cache: Tensor, layout: str) -> Pages:
    page, first, second, _ = cache.stride()
    return Pages(cache, page, *((first, second) if layout == "NHD" else (second, first)))


class _AppendPagedKV:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


append_paged_kv = _AppendPagedKV()
