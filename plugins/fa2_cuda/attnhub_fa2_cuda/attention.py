"""``attention``: plans over ragged and paged keys by one persistent kernel for each tile shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.plugin import (
    AttentionBatch,
    AttentionProblem,
    InvalidArgument,
    KernelSpec,
    PagedKV,
    Scales,
    Section,
    Staging,
    WorkSchedule,
    arch,
    fast_divisor,
    kernel,
    kernels,
    plan_spec,
    stream,
)
from attnhub_fa2_cuda.kernel import spec
from attnhub_fa2_cuda.tiles import DECODE, HEAD_DIM, PREFILL, Tile, choose

_ALIGNMENT = 16  # bytes of one copy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """How the query heads of a KV head are packed into the rows of a tile."""

    group: int
    groups_per_kv: int

    @classmethod
    def of(cls, problem: AttentionProblem, tile: Tile) -> _Heads:
        """All of them, or the largest part that divides them and fits."""
        whole = problem.group_size
        group = next(n for n in range(min(whole, tile.rows), 0, -1) if whole % n == 0)
        return cls(group=group, groups_per_kv=whole // group)


def _lanes(groups: int, ctas: int) -> int:
    """How many groups of heads are a dimension of the grid: what leaves the fewest CTAs idle."""
    divisors = [n for n in range(1, groups + 1) if groups % n == 0 and n <= ctas]
    return max(divisors, key=lambda n: (ctas // n * n, n))


class _TileRun:
    """The schedule, the room for partial results and the launch of one tile shape."""

    def __init__(self, problem: AttentionProblem, tile: Tile, max_batch: int) -> None:
        device = problem.device
        heads = _Heads.of(problem, tile)
        groups = problem.num_kv_heads * heads.groups_per_kv
        ctas = device.num_sms * tile.ctas_per_sm
        # Decode streams keys: CTAs that walk the same tokens fetch what lies side by side at about
        # the same time. Prefill computes, and shares out whole heads for the finer balance.
        lanes = _lanes(groups, ctas) if tile in DECODE else 1
        self._section = Section(
            num_workers=max(ctas // lanes, 1),
            num_heads=groups // lanes,
            num_lanes=lanes,
            tile_tokens=tile.rows // heads.group,
            tile_cost=tile.tile_cost,
            kv_block=tile.block_n,
            min_piece=tile.min_piece,
            window=problem.variant.band,
        )
        page_size = problem.page_size or 1
        self._work = WorkSchedule(
            device,
            [self._section],
            max_batch=max_batch,
            page_size=page_size,
            is_frozen=problem.graph,
        )
        self.grid = self._section.num_workers * lanes
        rows = self._section.num_slots * lanes * tile.rows
        where = torch.device(device.type, device.index)
        self._partial_out = torch.empty(rows, HEAD_DIM, device=where, dtype=torch.float32)
        self._partial_lse = torch.empty(rows, device=where, dtype=torch.float32)
        self._page_size = fast_divisor(page_size)
        self._heads = (
            problem.num_qo_heads,
            *fast_divisor(heads.group),
            heads.groups_per_kv,
            lanes,
        )
        loaded = kernel(spec(problem, tile))
        self._launcher = loaded.launcher(device.index, block=tile.threads, smem=tile.smem)
        self._bind()

    def _bind(self) -> None:
        """Pack what stays the same from batch to batch."""
        self._schedule = self._work.schedule(0)
        self.launch = self._launcher.bind(
            *self._page_size,
            *self._schedule,
            *self._section.values(),
            self._partial_out.data_ptr(),
            self._partial_lse.data_ptr(),
            *self._heads,
        )

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, last_page_len: Tensor | None) -> None:
        """Have the device cut up a batch, whose metadata lie there."""
        self._work.plan(qo_indptr, kv_indptr, last_page_len=last_page_len)
        if self._work.schedule(0) is not self._schedule:  # it has grown
            self._bind()


class AttentionPlan:
    """Attention of one problem; a batch comes with ``update``."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        device = problem.device
        self._device = torch.device(device.type, device.index)
        self._staging = Staging(self._device)
        self._runs: dict[str, _TileRun] = {}
        self._tiles = _tiles(problem)
        kernels(specs(problem))
        if problem.graph:  # nothing can be allocated or loaded while a graph is captured
            self._run_of(self._tiles[0], problem.extent.batch or 1)
        self._scale = problem.variant.scale or 1.0 / math.sqrt(HEAD_DIM)
        cap = problem.variant.soft_cap
        self._variant = () if cap is None else (cap,)
        self._index = device.index
        self._is_nhd = problem.layout == "NHD"
        self._is_ragged = problem.kv == "ragged"
        self._out_bytes = 4 if problem.out_dtype == "float32" else 2
        self._scales: tuple[Scales | None, tuple[Any, ...]] = (None, ())

    def update(self, batch: AttentionBatch) -> None:
        """Upload what lies on the host, and have the device plan the batch."""
        tile = self._tiles[0]
        if len(self._tiles) > 1 and not _is_decode(self._problem, batch.max_qo_len):
            tile = self._tiles[1]
        run = self._run_of(tile, max(batch.batch, 1))
        kv: Any = batch.kv
        pages = (kv.last_page_len, kv.indices) if isinstance(kv, PagedKV) else (None, None)
        # Kept: the kernels read these until the next batch.
        self._metadata = self._on_device(batch.qo_indptr, kv.indptr, *pages)
        qo_indptr, kv_indptr, last_page_len, indices = self._metadata
        run.plan(qo_indptr, kv_indptr, last_page_len)
        self._run = run
        self._batch = (
            qo_indptr.data_ptr() + 4 * batch.batch,
            0 if indices is None else indices.data_ptr(),
        )

    def _run_of(self, tile: Tile, max_batch: int) -> _TileRun:
        run = self._runs.get(tile.name)
        if run is None:
            run = self._runs[tile.name] = _TileRun(self._problem, tile, max_batch)
        return run

    def _on_device(self, *given: Tensor | None) -> list[Any]:
        """The same on the device; what lies on the host goes up as one copy."""
        away = [x for x in given if x is not None and x.device != self._device]
        if not away:
            return list(given)
        block = torch.cat(away)
        up = torch.empty(block.shape, dtype=block.dtype, device=self._device)
        self._staging.copy(up, block)
        parts = iter(up.split([x.numel() for x in away]))
        return [x if x is None or x.device == self._device else next(parts) for x in given]

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
        """See docs/plan_contract.md.

        Raises:
            InvalidArgument: rows of a tensor do not begin at multiples of 16 bytes.
        """
        q_rows, k_rows, v_rows = (q.data_ptr(), *q.stride()[:2]), self._rows(k), self._rows(v)
        out_at, (out_token, out_head, _) = out.data_ptr(), out.stride()
        k_at, k_page, k_slot, k_head = k_rows
        v_at, v_page, v_slot, v_head = v_rows
        strides = q_rows[1] | q_rows[2] | k_page | k_slot | k_head | v_page | v_slot | v_head
        addresses = q_rows[0] | k_at | v_at | out_at
        if (addresses | 2 * strides | self._out_bytes * (out_token | out_head)) % _ALIGNMENT:
            _check_alignment(q=q, k=k, v=v, out=out)
        last, factors = self._scales
        if scales is not last:
            factors = _scales(scales, self._scale)
            self._scales = (scales, factors)
        run = self._run
        run.launch(
            run.grid,
            stream(self._index),
            *q_rows,
            *k_rows,
            *v_rows,
            out_at,
            0 if lse is None else lse.data_ptr(),
            out_token,
            out_head,
            0 if lse is None else lse.stride(0),
            q.shape[0],
            *factors,
            *self._variant,
            *self._batch,
        )

    def _rows(self, x: Tensor) -> tuple[int, int, int, int]:
        """Address and strides of K or V: of pages, of the slots of a page, of heads."""
        if self._is_ragged:  # every row is a page
            token, head, _ = x.stride()
            return (
                (x.data_ptr(), token, 0, head) if self._is_nhd else (x.data_ptr(), head, 0, token)
            )
        page, slot, head, _ = x.stride()
        return (
            (x.data_ptr(), page, slot, head) if self._is_nhd else (x.data_ptr(), page, head, slot)
        )


def _check_alignment(**tensors: Tensor) -> None:
    """Refuse rows that 16-byte copies cannot reach. Strides that nothing moves along are none."""
    for name, x in tensors.items():
        most = _ALIGNMENT // x.element_size()
        moved = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
        if x.data_ptr() % _ALIGNMENT or any(stride % most for stride in moved):
            raise InvalidArgument(
                f"{name} begins at {x.data_ptr():#x} with strides {x.stride()}: fa2_cuda copies "
                f"{_ALIGNMENT} bytes at a time, so rows must begin at multiples of {most} elements "
                f"from a multiple of {_ALIGNMENT} bytes; give a copy, as {name}.clone(), or use "
                "another backend"
            )


def _scales(scales: Scales, softmax: float) -> tuple[Any, ...]:
    """The factors of scores and of the output that the host knows, and those on the device."""
    known, on_device = {"q": 1.0, "k": 1.0, "v": 1.0}, list[int]()
    for name in known:
        value = getattr(scales, name)
        if isinstance(value, Tensor):
            on_device += [value.data_ptr(), value.stride(0) if value.numel() > 1 else 0]
        else:
            known[name] = float(value)
            on_device += [0, 0]
    return (softmax * known["q"] * known["k"], known["v"], *on_device)


def _is_decode(problem: AttentionProblem, qo_len: int | None) -> bool:
    """Whether requests of at most so many queries fit into a tile for decode."""
    tile = _decode(problem)
    return qo_len is not None and qo_len * _Heads.of(problem, tile).group <= tile.rows


def _decode(problem: AttentionProblem) -> Tile:
    return choose(DECODE, problem.device.sm)


def _tiles(problem: AttentionProblem) -> tuple[Tile, ...]:
    """The shapes that batches may need. A graph goes on with the one that it was captured with."""
    decode, prefill = _decode(problem), choose(PREFILL, problem.device.sm)
    if not problem.graph:
        return (decode, prefill)
    return (decode,) if _is_decode(problem, problem.extent.qo_len) else (prefill,)


def specs(problem: AttentionProblem) -> list[KernelSpec]:
    """All kernels of a problem."""
    own = [spec(problem, tile) for tile in _tiles(problem)]
    return [plan_spec(arch(problem.device)), *own]


class AttentionPlanner:
    """What the manifest's ``load`` names."""

    def plan(self, problem: AttentionProblem) -> AttentionPlan:
        """A plan for batches of any size; compiles the kernels where no cache has them."""
        return AttentionPlan(problem)

    def specs(self, problem: AttentionProblem) -> list[KernelSpec]:
        """All kernels of a problem."""
        return specs(problem)


attention = AttentionPlanner()
