"""``attention``: plans over dense, ragged and paged keys; kernels read metadata on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnhub.plugin import AttentionBatch, AttentionProblem, PagedKV, Scales, Staging, TritonVariant
from attnhub_triton_misc.attention.arguments import (
    Factors,
    Form,
    Hooks,
    Keys,
    Logs,
    Partial,
    Queries,
    Requests,
    Tile,
)
from attnhub_triton_misc.attention.kernel import attend
from attnhub_triton_misc.attention.output import merge
from attnhub_triton_misc.attention.tiles import Tiles, TileSettings, power_of_two
from attnhub_triton_misc.launch import cdiv, launch

#: Bits of the exponent of an FP8 dtype.
_EXPONENTS = {"float8_e4m3fn": 4, "float8_e5m2": 5}
#: In the order of Hooks.
_HOOKS = ("query_mod", "key_mod", "score_mod", "mask_mod", "output_mod", "sink")
_MERGE_WARPS = 4
#: Heads of a group that one program of the merge takes: more would not fit into its registers.
_MERGE_ROWS = 16


class _Work(NamedTuple):
    """What a launch takes of a batch."""

    requests: Requests
    tile: TileSettings
    tiles: int
    batch: int
    kv_tokens: int
    max_kv_len: int | None


class AttentionPlan:
    """Attention of one problem; a batch comes with ``update``."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        device = problem.device
        # A tensor on the CPU, where the kernels are interpreted, says no index.
        is_cpu = device.type == "cpu"
        self._device = torch.device("cpu") if is_cpu else torch.device(device.type, device.index)
        self._staging = Staging(self._device)
        self._is_nhd = problem.layout == "NHD"
        variant = problem.variant
        self._scale = variant.scale or 1.0 / math.sqrt(problem.head_dim_qk)
        self._form = Form(
            dense=problem.kv == "dense",
            group=problem.group_size,
            page=problem.page_size or 0,
            exponent=_EXPONENTS.get(problem.kv_dtype, 0),
            dim_qk=problem.head_dim_qk,
            dim_vo=problem.head_dim_vo,
            left=variant.band[0],
            right=variant.band[1],
            softmax=variant.softmax,
            packed_mask=problem.mask == "packed",
        )
        dims = problem.head_dim_qk, problem.head_dim_vo
        self._padded_dims = tuple(map(power_of_two, dims))
        self._mask_offsets: Tensor | None = None
        self._tiles = Tiles(problem)
        if problem.graph:
            # What a graph is captured with stays: the tile, the shares, the memory of offsets.
            extent = problem.extent
            self._tile = self._tiles.best(extent.qo_len)
            self._max_kv_len = extent.kv_len
            if problem.mask != "none":
                most = extent.batch or 1
                self._mask_offsets = torch.empty(most, dtype=torch.int64, device=self._device)

    def update(self, batch: AttentionBatch) -> None:
        """Upload what lies on the host; nothing of it is looked at."""
        kv: Any = batch.kv
        pages = (kv.last_page_len, kv.indices) if isinstance(kv, PagedKV) else (None, None)
        qo_indptr, kv_indptr, last_page_len, indices = self._staging.all_on_device(
            batch.qo_indptr, kv.indptr, *pages
        )
        mask = offsets = None
        if batch.mask is not None:
            mask = self._staging.on_device(batch.mask.view(torch.uint8))
            offsets = self._offsets(qo_indptr, kv_indptr, last_page_len)
        self._requests = Requests(qo_indptr, kv_indptr, last_page_len, indices, mask, offsets)
        self._batch = batch.batch  # of a graph, always the most that it has room for
        if not self._problem.graph:
            self._tile = self._tiles.best(batch.max_qo_len)
            self._max_kv_len = batch.max_kv_len

    def _offsets(
        self, qo_indptr: Tensor, kv_indptr: Tensor, last_page_len: Tensor | None
    ) -> Tensor:
        """The byte where the mask of each request begins; packed ones are padded to a byte."""
        kv_lens = kv_indptr.diff().long()
        if last_page_len is not None:
            keys = (kv_lens - 1) * self._form.page + last_page_len
            kv_lens = torch.where(kv_lens > 0, keys, 0)
        sizes = qo_indptr.diff() * kv_lens
        if self._form.packed_mask:
            sizes = (sizes + 7) // 8
        offsets = sizes.cumsum(0) - sizes
        if self._mask_offsets is None:
            return offsets
        return self._mask_offsets[: offsets.numel()].copy_(offsets)

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
        """See docs/plan_contract.md."""
        problem, form = self._problem, self._form
        code = TritonVariant.of(problem.variant, params)
        tokens = q.numel() // (q.shape[-1] * q.shape[-2])
        work = self._dense(q, k, mask) if form.dense else self._planned(tokens)
        tile = work.tile
        shares = self._tiles.shares(
            tile, batch=work.batch, tokens=tokens, max_kv_len=work.max_kv_len
        )
        partial = self._partial(q, shares, tokens)
        results = (_queries(out), _logs(lse))
        metadata = (
            work.requests,
            self._factors(scales),
            code.values(params),
            tokens,
            work.kv_tokens,
            work.batch,
        )
        fixed = {
            "HOOKS": Hooks(*(code.functions[name] for name in _HOOKS)),
            "FORM": form,
            "SHARES": shares,
        }
        launch(
            attend,
            (work.tiles, problem.num_kv_heads, shares),
            q.device,
            _queries(q),
            self._keys(k),
            self._keys(v),
            *results,
            partial,
            *metadata,
            **fixed,
            TILE=Tile(tile.rows, tile.keys, *self._padded_dims),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if shares > 1:
            heads = min(power_of_two(form.group, 1), _MERGE_ROWS)
            launch(
                merge,
                (tokens, problem.num_kv_heads, cdiv(form.group, heads)),
                q.device,
                partial,
                *results,
                *metadata,
                **fixed,
                TILE=Tile(heads, 0, *self._padded_dims),
                num_warps=_MERGE_WARPS,
            )

    def _planned(self, tokens: int) -> _Work:
        tiles = tokens * self._form.group // self._tile.rows + self._batch + 1
        return _Work(self._requests, self._tile, tiles, self._batch, 0, self._max_kv_len)

    def _dense(self, q: Tensor, k: Tensor, mask: Tensor | None) -> _Work:
        """Nothing of a call stays in the plan: it serves all of its facts, several at once."""
        batch, qo_len, kv_len = *q.shape[:2], k.shape[1]
        requests = Requests()
        if mask is not None:
            each = mask.shape[1] * mask.shape[2] if mask.dim() == 3 else 0
            requests = Requests(mask=mask.contiguous().view(torch.uint8), mask_offsets=each)
        tile = self._tiles.best(qo_len)
        tiles = batch * cdiv(qo_len * self._form.group, tile.rows)
        return _Work(requests, tile, tiles, batch, batch * kv_len, kv_len)

    def _partial(self, q: Tensor, shares: int, tokens: int) -> Partial:
        if shares == 1:
            return Partial(None, None)
        rows = (shares, tokens, self._problem.num_qo_heads)
        return Partial(
            q.new_empty(*rows, self._problem.head_dim_vo, dtype=torch.float32),
            q.new_empty(*rows, dtype=torch.float32),
        )

    def _keys(self, x: Tensor) -> Keys:
        data = x.view(torch.uint8) if self._form.exponent else x
        if self._form.dense:
            return Keys(data, *x.stride()[:3])
        if self._problem.kv != "paged":
            token, head, _ = x.stride() if self._is_nhd else (x.stride(1), x.stride(0), 1)
            return Keys(data, 0, token, head)
        page, slot, head, _ = x.stride()
        return Keys(data, page, slot, head) if self._is_nhd else Keys(data, page, head, slot)

    def _factors(self, scales: Scales) -> Factors:
        pairs: list[Any] = []
        for value in (scales.q, scales.k, scales.v):
            if isinstance(value, Tensor):
                pairs += [value, value.stride(0) if value.numel() > 1 else 0]
            else:
                pairs += [float(value), None]
        return Factors(self._scale, *pairs)


def _queries(x: Tensor) -> Queries:
    return Queries(x, *(x.stride()[:3] if x.dim() == 4 else (0, *x.stride()[:2])))


def _logs(x: Tensor | None) -> Logs:
    if x is None:
        return Logs(None, 0, 0)
    return Logs(x, *(x.stride()[:2] if x.dim() == 3 else (0, x.stride(0))))


class AttentionPlanner:
    """What the manifest's ``load`` names."""

    def plan(self, problem: AttentionProblem) -> AttentionPlan:
        """A plan for batches of any size; kernels are compiled when they are first launched."""
        return AttentionPlan(problem)


attention = AttentionPlanner()
