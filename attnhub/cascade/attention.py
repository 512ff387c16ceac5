"""``CascadeAttention``: requests that share a prefix read its keys once, together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, overload

import torch
from torch import Tensor

from attnhub.attn import BatchAttention, DTypes, GraphLimits, Paged, PagedKV, Scales
from attnhub.attn.inputs import NO_SCALES
from attnhub.cascade.api import merge_state_
from attnhub.core import check, metadata
from attnhub.core.decision import Decision
from attnhub.errors import InvalidArgument, NotPlanned
from attnhub.page import reference as page
from attnhub.variant import Variant

_DEFAULT = Variant()
#: What a part of the keys can compute without knowing of the others.
_SPLITTABLE = frozenset({"causal", "soft_cap"})

Level = tuple[Tensor, PagedKV]


class CascadeAttention:
    """:class:`attnhub.BatchAttention` over keys that lie in levels, from shared to private.

    Each level partitions the same query rows into groups and gives every group keys of its own:
    first one group with the system prompt, say, then one per conversation, last one per request. A
    row sees the keys of its groups, first level first. Each level is one batch, in which the rows
    of a group form one request, so shared keys are read once; the results are merged by their LSE.

    Args:
        num_qo_heads: query heads.
        num_kv_heads: KV heads; must divide ``num_qo_heads``.
        head_dim: one integer, or (dim of q and k, dim of v and output).
        dtype: one dtype, or :class:`attnhub.DTypes` of q, kv and output.
        kv: ``Paged(page_size, layout)``; all levels lie in one cache.
        levels: how many; for CUDA graphs the :class:`attnhub.GraphLimits` of each.
        variant: of ``causal``, ``soft_cap`` and ``scale``. Causal concerns the last level; the
            others come before every query.
        device: needed unless the metadata given to ``plan()`` lie on a GPU.
        deterministic: bitwise equal results, run to run. How a batch is cut into levels does change
            the rounding.
        backend: require this backend.

    Raises:
        InvalidArgument: a variant that does not split over levels: positions (window, alibi, rope,
            mods) and extra terms of the denominator (sinks) differ from level to level.

    Source: Juravsky et al., "Hydragen" (2024); Ye et al., "FlashInfer" (2025).

    Example::

        cascade = CascadeAttention(32, 8, 128, torch.bfloat16, Paged(16), levels=2, device="cuda:0",
                                   variant=Variant(causal=True))
        cascade.plan([(torch.tensor([0, tokens], dtype=torch.int32), prefix_table),
                      (qo_indptr, suffix_table)])
        out = cascade.run(q, kv_cache)
    """

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int | tuple[int, int],
        dtype: torch.dtype | str | DTypes,
        kv: Paged,
        *,
        levels: int | Sequence[GraphLimits],
        variant: Variant = _DEFAULT,
        device: torch.device | str | None = None,
        deterministic: bool = False,
        backend: str = "",
    ) -> None:
        if not isinstance(kv, Paged):
            check.fail(f"kv={kv!r}: cascade levels share one paged cache; give Paged(page_size)")
        graphs: Sequence[GraphLimits | None] = (
            [None] * levels if isinstance(levels, int) else levels
        )
        if not graphs:
            check.fail(f"levels={levels!r}: needs at least one level")
        _check_variant(variant)
        earlier = replace(variant, causal=False)
        self._levels = [
            BatchAttention(
                num_qo_heads,
                num_kv_heads,
                head_dim,
                dtype,
                kv,
                variant=variant if level == len(graphs) - 1 else earlier,
                device=device,
                graph=graph,
                deterministic=deterministic,
                backend=backend,
            )
            for level, graph in enumerate(graphs)
        ]
        self._page_size = kv.page_size
        self._causal = variant.causal
        self._planned = False

    def plan(
        self,
        levels: Sequence[Level],
        *,
        max_qo_lens: Sequence[int | None] | None = None,
        max_kv_lens: Sequence[int | None] | None = None,
        validate: bool = False,
    ) -> None:
        """Take over the next batch. Never synchronises with the device, unless ``validate``.

        Args:
            levels: ``(qo_indptr, PagedKV)`` of each level, shared first: group g of a level has the
                query rows ``qo_indptr[g]:qo_indptr[g + 1]`` and page table row g. Every level
                covers all rows. A group may have no rows, or no keys.
            max_qo_lens: per level an upper bound, where the metadata are on the device.
            max_kv_lens: likewise.
            validate: check device metadata by value too (a synchronisation).

        With ``causal``, a group of the last level with n query rows needs at least n - 1 keys,
        unless no earlier level has keys for it: its first rows would not see all of the earlier
        keys. Like all values, this is checked on the host, and on the device with ``validate``.

        Raises:
            InvalidArgument: metadata that contradict themselves, each other or the constructor.
            BackendUnsupported, NoBackend: with the table of reasons.
        """
        self._planned = False  # a level that fails must not leave a mixture to run
        count = len(self._levels)
        for name, given in (
            ("levels", levels), ("max_qo_lens", max_qo_lens), ("max_kv_lens", max_kv_lens)
        ):  # fmt: skip
            if given is not None and len(given) != count:
                check.fail(f"{name} has {len(given)} entries, but this cascade has {count} levels")
        for i, (attn, (qo_indptr, kv)) in enumerate(zip(self._levels, levels, strict=True)):
            try:
                attn.plan(
                    qo_indptr,
                    kv,
                    max_qo_len=max_qo_lens[i] if max_qo_lens else None,
                    max_kv_len=max_kv_lens[i] if max_kv_lens else None,
                    validate=validate,
                )
            except InvalidArgument as error:
                raise InvalidArgument(f"level {i}: {error}") from error
        self._check_levels(levels, validate=validate)
        self._planned = True

    @overload
    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        out: Tensor | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        out: Tensor | None = ...,
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        out: Tensor | None = ...,
        return_lse: bool,
    ) -> Tensor | tuple[Tensor, Tensor]: ...

    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = NO_SCALES,
        out: Tensor | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the planned batch: one attention per level and a merge after each but the first.

        Args:
            q: ``[tokens, num_qo_heads, head_dim_qk]``.
            kv_cache: the cache that the tables of all levels index.
            scales: what stored q, k and v are multiplied by.
            out: ``[tokens, num_qo_heads, head_dim_vo]`` to write to.
            return_lse: also return the natural-log LSE over all levels, float32
                ``[tokens, num_qo_heads]``.

        Returns:
            ``[tokens, num_qo_heads, head_dim_vo]``; each level's part is rounded to its dtype.

        Raises:
            NotPlanned: ``plan()`` was not called, or failed.
            InvalidArgument: tensors that do not fit the constructor or the plan.
        """
        if not self._planned:
            raise NotPlanned("run() before plan(): call plan([(qo_indptr, table), ...]) first")
        o, lse = self._levels[0].run(q, kv_cache, scales=scales, out=out, return_lse=True)
        for level in self._levels[1:]:
            o_b, lse_b = level.run(q, kv_cache, scales=scales, return_lse=True)
            merge_state_(o, lse, o_b, lse_b)
        return (o, lse) if return_lse else o

    def explain(self) -> tuple[Decision, ...]:
        """The decision behind each level's plan."""
        return tuple(level.explain() for level in self._levels)

    def _check_levels(self, levels: Sequence[Level], *, validate: bool) -> None:
        """What no level can check alone: equal row counts, and that causality splits."""
        starts = [metadata.host_copy(qo_indptr, validate=validate) for qo_indptr, _ in levels]
        rows = [int(indptr[-1]) for indptr in starts if indptr is not None]
        if len(set(rows)) > 1:
            check.fail(f"qo_indptr of the levels ends at {rows}; every level must cover all rows")
        if not self._causal:
            return
        qo_indptr, lens = starts[-1], self._kv_lens(levels[-1][1], validate=validate)
        if qo_indptr is None or lens is None:
            return
        for group in (qo_indptr.diff() > lens + 1).nonzero().flatten().tolist():
            first, last = qo_indptr[group : group + 2].tolist()
            for i, (indptr, (_, table)) in enumerate(zip(starts[:-1], levels, strict=False)):
                keys = self._kv_lens(table, validate=validate)
                if indptr is None or keys is None:
                    continue
                if ((indptr[:-1] < last) & (indptr[1:] > first) & (keys > 0)).any():
                    check.fail(
                        f"causal: group {group} of the last level has {last - first} query rows "
                        f"but {int(lens[group])} keys, so its first rows would see only some keys "
                        f"of level {i}; move keys from there into the last level, at least "
                        f"{last - first - 1}"
                    )

    def _kv_lens(self, table: PagedKV, *, validate: bool) -> Tensor | None:
        indptr = metadata.host_copy(table.indptr, validate=validate)
        last = metadata.host_copy(table.last_page_len, validate=validate)
        if indptr is None or last is None:
            return None
        return page.seq_lens(indptr, last, self._page_size)


def _check_variant(variant: Variant) -> None:
    unfit = variant.features - _SPLITTABLE
    if unfit:
        check.fail(
            f"variant uses {', '.join(sorted(unfit))}, which does not split over cascade levels "
            "(positions and denominators differ from level to level); use causal, soft_cap and "
            "scale only, or BatchAttention over one page table"
        )
