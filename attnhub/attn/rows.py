"""Which K/V rows and which mask belong to each request, for backends that work request by request.

Reading device metadata here copies it to the host (a synchronisation): fine for PyTorch backends,
never done by ``plan()`` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from attnhub.attn.batch import AttentionBatch
from attnhub.attn.kv import BlockSparseKV, PagedKV, VariableBlockKV
from attnhub.attn.lengths import Lengths
from attnhub.attn.problem import AttentionProblem


@dataclass(slots=True, kw_only=True)
class Rows:
    """One request: its query rows, its K and V ``[kv_len, kv_heads, dim]`` and what it may see."""

    index: int
    rows: slice
    k: Tensor
    v: Tensor
    visible: Tensor | None
    q_offset: int | None
    k_offset: int


def on_host(batch: AttentionBatch, problem: AttentionProblem) -> AttentionBatch:
    """The batch with lengths and page table on the host (a synchronisation if they are not)."""
    qo_indptr = batch.qo_indptr.cpu()
    qo_lens = qo_indptr.diff().tolist()
    kv = batch.kv
    if isinstance(kv, PagedKV):
        kv = PagedKV(kv.indptr.cpu(), kv.indices, kv.last_page_len.cpu())
        pages, last = kv.indptr.diff(), kv.last_page_len
        size = problem.page_size or 1
        kv_lens = torch.where(pages > 0, (pages - 1) * size + last, 0).tolist()
    elif isinstance(kv, VariableBlockKV):
        kv_lens = kv.col_sizes[0].sum().reshape(1).tolist()
    else:
        kv_lens = kv.indptr.cpu().diff().tolist()
    return replace(
        batch, qo_indptr=qo_indptr, kv=kv, qo_lens=Lengths(qo_lens), kv_lens=Lengths(kv_lens)
    )


def requests(
    batch: AttentionBatch, problem: AttentionProblem, k: Tensor, v: Tensor
) -> Iterator[Rows]:
    """Every request of a batch in order; K and V as given to ``run()``."""
    batch = on_host(batch, problem)
    assert batch.qo_lens is not None
    assert batch.kv_lens is not None
    starts = [0, *accumulate(batch.qo_lens)]
    masks = _custom_masks(batch, k.device)
    blocks = _block_masks(batch, problem, k.device)
    q_offset = None if batch.q_offset is None else batch.q_offset.tolist()
    k_offset = None if batch.k_offset is None else batch.k_offset.tolist()
    for b, kv_len in enumerate(batch.kv_lens):
        visible, sparse = next(masks), next(blocks)
        if visible is None or sparse is None:
            visible = visible if sparse is None else sparse
        else:
            visible = visible & sparse
        yield Rows(
            index=b,
            rows=slice(starts[b], starts[b + 1]),
            k=_gather(k, batch, problem, b, kv_len),
            v=_gather(v, batch, problem, b, kv_len),
            visible=visible,
            q_offset=None if q_offset is None else q_offset[b],
            k_offset=0 if k_offset is None else k_offset[b],
        )


def write(found: Sequence[tuple[Tensor, Tensor]], out: Tensor, lse: Tensor | None) -> None:
    """Outputs and LSE of all requests in order; rows that no request owns see no key."""
    at = 0
    for o, s in found:
        rows = slice(at, at + o.shape[0])
        out[rows] = o.to(out.dtype)
        if lse is not None:
            lse[rows] = s.float()
        at = rows.stop
    out[at:] = 0.0
    if lse is not None:
        lse[at:] = -math.inf


def _gather(
    x: Tensor, batch: AttentionBatch, problem: AttentionProblem, b: int, kv_len: int
) -> Tensor:
    """Rows of request ``b``, ``[kv_len, kv_heads, dim]``."""
    kv = batch.kv
    if isinstance(kv, PagedKV):
        first, last = kv.indptr[b : b + 2].tolist()
        pages = x[kv.indices[first:last].to(x.device, torch.int64)]
        if problem.layout == "HND":
            pages = pages.transpose(1, 2)
        return pages.reshape(-1, *pages.shape[2:])[:kv_len]
    start = 0 if isinstance(kv, VariableBlockKV) else int(kv.indptr[b])
    rows = x if problem.layout == "NHD" else x.transpose(0, 1)
    return rows[start : start + kv_len]


def _custom_masks(batch: AttentionBatch, device: torch.device) -> Iterator[Tensor | None]:
    """The custom mask of each request, ``[qo_len, kv_len]`` bool."""
    if batch.mask is None:
        while True:
            yield None
    at = 0
    mask = batch.mask.to(device)
    assert batch.qo_lens is not None
    assert batch.kv_lens is not None
    for n, m in zip(batch.qo_lens, batch.kv_lens, strict=True):
        size = -(-n * m // 8) if batch.mask_packed else n * m
        bits = mask[at : at + size]
        if batch.mask_packed:
            shifts = torch.arange(8, device=device, dtype=torch.uint8)
            bits = ((bits.unsqueeze(-1) >> shifts) & 1).bool().reshape(-1)[: n * m]
        yield bits.view(n, m)
        at += size


def _block_masks(
    batch: AttentionBatch, problem: AttentionProblem, device: torch.device
) -> Iterator[Tensor | None]:
    """What block sparsity lets each request see, dense."""
    kv = batch.kv
    if isinstance(kv, VariableBlockKV):
        yield _variable_mask(kv).to(device)
        return
    if not isinstance(kv, BlockSparseKV) or problem.block is None:
        while True:
            yield None
    r, c = problem.block
    row = 0
    assert batch.qo_lens is not None
    assert batch.kv_lens is not None
    indptr = kv.block_indptr.tolist()
    for n, m in zip(batch.qo_lens, batch.kv_lens, strict=True):
        dense = torch.zeros(-(-n // r), r, -(-m // c), c, dtype=torch.bool, device=device)
        for i in range(dense.shape[0]):
            entries = slice(indptr[row + i], indptr[row + i + 1])
            for at, j in enumerate(kv.block_indices[entries].tolist(), start=entries.start):
                dense[i, :, j] |= True if kv.block_mask is None else kv.block_mask[at].to(device)
        row += dense.shape[0]
        yield dense.reshape(dense.shape[0] * r, dense.shape[2] * c)[:n, :m]


def _variable_mask(kv: VariableBlockKV) -> Tensor:
    """``[kv_heads, queries, keys]`` from per-head block sizes."""
    heads = []
    for sizes, cols, blocks in zip(kv.row_sizes, kv.col_sizes, kv.block_map, strict=True):
        rows = blocks.repeat_interleave(sizes.to(blocks.device, torch.int64), 0)
        heads.append(rows.repeat_interleave(cols.to(blocks.device, torch.int64), 1))
    return torch.stack(heads)
