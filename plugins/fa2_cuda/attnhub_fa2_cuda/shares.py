"""How a tile shape takes its requests: packed heads, the schedule, room for partial results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.plugin import (
    AttentionProblem,
    KernelSpec,
    Section,
    WorkSchedule,
    fast_divisor,
    kernel,
)
from attnhub_fa2_cuda.tiles import Tile

#: Keys of a piece where cuts are fixed: results then depend on a request alone.
_FIXED_PIECE = 1024
_FIRST_WITH_PDL = 90


def page_size_of(problem: AttentionProblem) -> int:
    """Keys of a page; a block is one, and so is a row of ragged keys."""
    return problem.block[1] if problem.block else problem.page_size or 1


def may_overlap(problem: AttentionProblem) -> bool:
    """Whether a launch may begin before what is ahead of it in the stream has ended.

    Tensors of variants are read by loads that compilers may do at any time, before the kernel
    waits as well, and what is ahead may write them.
    """
    has_tensors = any(spec.kind == "tensor" for spec in problem.variant.params)
    return (problem.device.sm or 0) >= _FIRST_WITH_PDL and not has_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How the query heads of a KV head are packed into the rows of a tile."""

    group: int
    groups_per_kv: int

    @classmethod
    def of(cls, problem: AttentionProblem, tile: Tile) -> Heads:
        """All of them, or the largest part that divides them and fits."""
        whole = problem.group_size
        group = next(n for n in range(min(whole, tile.rows), 0, -1) if whole % n == 0)
        return cls(group=group, groups_per_kv=whole // group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The requests of one tile shape: those of as many queries as ``qo_lens`` says, both included.

    ``is_decode`` is of rows so few that keys are what takes time.
    """

    tile: Tile
    is_decode: bool
    qo_lens: tuple[int, int]

    def section(
        self, problem: AttentionProblem, ctas: int, *, kv_tokens: int, batch: int
    ) -> Section:
        """The section of the schedule, for ``ctas`` in all.

        Args:
            problem: what is computed.
            ctas: of the grid.
            kv_tokens: the most keys that a batch has, where results must not depend on the batch.
            batch: the most requests, likewise.
        """
        heads = Heads.of(problem, self.tile)
        groups = problem.num_kv_heads * heads.groups_per_kv
        # Decode streams keys: CTAs that walk the same tokens fetch what lies side by side at about
        # the same time. Prefill computes, and shares out whole heads for the finer balance.
        lanes = _lanes(groups, ctas) if self.is_decode else 1
        tile = self.tile
        facts: dict[str, Any] = {
            "num_workers": max(ctas // lanes, 1),
            "num_heads": groups // lanes,
            "num_lanes": lanes,
            "min_qo_len": self.qo_lens[0],
            "max_qo_len": self.qo_lens[1],
            "tile_tokens": tile.rows // heads.group,
            "tile_cost": tile.tile_cost,
            "kv_block": tile.block_n,
            "min_piece": tile.min_piece,
            "window": problem.variant.band,
        }
        if not problem.deterministic:
            return Section(**facts)
        # Long requests have tiles enough, and where nothing bounds the keys no cut is safe.
        if not (self.is_decode and kv_tokens):
            return Section(**facts, split_len=2**30 // tile.block_n * tile.block_n)
        section = Section(**facts, split_len=_FIXED_PIECE)
        slots = section.slots_for(batch=batch, kv_tokens=kv_tokens, max_qo_len=self.qo_lens[1])
        return Section(**facts, split_len=_FIXED_PIECE, fixed_slots=slots)


def _lanes(groups: int, ctas: int) -> int:
    """How many groups of heads are a dimension of the grid: what leaves the fewest CTAs idle."""
    divisors = [n for n in range(1, groups + 1) if groups % n == 0 and n <= ctas]
    return max(divisors, key=lambda n: (ctas // n * n, n))


class ShareRun:
    """A kernel of one share or two, ready to be launched for a batch.

    Args:
        problem: what is computed.
        spec: the kernel.
        shares: those that it has, in its order.
        smem: bytes of a CTA.
        max_batch: room for so many requests at first.
        kv_tokens: the most keys of a batch, if it matters and is known.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        spec: KernelSpec,
        shares: Sequence[Share],
        *,
        smem: int,
        max_batch: int,
        kv_tokens: int,
    ) -> None:
        device = problem.device
        tiles = [share.tile for share in shares]
        self.grid = device.num_sms * min(tile.ctas_per_sm for tile in tiles)
        self.kv_tokens, self.max_batch = kv_tokens, max_batch
        self._sections = [
            share.section(problem, self.grid, kv_tokens=kv_tokens, batch=max_batch)
            for share in shares
        ]
        page_size = page_size_of(problem)
        self._work = WorkSchedule(
            device,
            self._sections,
            max_batch=max_batch,
            page_size=page_size,
            is_frozen=problem.graph,
        )
        where = torch.device(device.type, device.index)
        self._partials = []
        self._packing = []
        for share, section in zip(shares, self._sections, strict=True):
            rows = section.num_slots * section.num_lanes * share.tile.rows
            self._partials.append(
                (
                    torch.empty(rows, problem.head_dim_vo, device=where, dtype=torch.float32),
                    torch.empty(rows, device=where, dtype=torch.float32),
                )
            )
            heads = Heads.of(problem, share.tile)
            self._packing.append(
                (*fast_divisor(heads.group), heads.groups_per_kv, section.num_lanes)
            )
        self._fixed = (*fast_divisor(page_size), problem.num_qo_heads)
        self._on_gpu = device.type == "cuda"
        loaded = kernel(spec)
        self._launchers = [
            loaded.launcher(device.index, block=tiles[0].threads, smem=smem, pdl=pdl)
            for pdl in (False, may_overlap(problem))
        ]
        self._bind()

    def _bind(self) -> None:
        """Pack what stays the same from batch to batch."""
        self._bound = self._work.schedule(0)
        values: list[float] = [*self._fixed]
        for i, section in enumerate(self._sections):
            values += self._work.schedule(i)
            values += section.values()
            values += (partial.data_ptr() for partial in self._partials[i])
            values += self._packing[i]
        self._after_plan, self._after_run = (one.bind(*values) for one in self._launchers)

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, last_page_len: Tensor | None) -> None:
        """Have the device cut up a batch, whose metadata lie there."""
        self._work.plan(qo_indptr, kv_indptr, last_page_len=last_page_len)
        if self._work.schedule(0) is not self._bound:  # it has grown
            self._bind()
        self.launch: Callable[..., None] = self._launch_first
        self._is_captured = False

    def _launch_first(self, grid: int, stream: int, *values: Any) -> None:
        """What ``launch`` is after a plan, for whose end it waits.

        Those that follow may begin before what is ahead of them in the stream has ended: the
        kernel waits itself, when it needs to. What is captured does not run, so that the first to
        run is still to come.
        """
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            launch = self._after_run if self._is_captured else self._after_plan
            self._is_captured = True
            launch(grid, stream, *values)
            return
        self._after_plan(grid, stream, *values)
        self.launch = self._after_run
