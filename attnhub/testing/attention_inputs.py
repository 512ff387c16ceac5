"""Small batches of attention requests, and their form for each kind of K/V storage.

Requests are made one by one and packed afterwards, so that the same request can be computed in a
batch and alone. All memory that no request owns is poisoned with NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import BlockSparseKV, PagedKV, RaggedKV, VariableBlockKV
from attnhub.attn.problem import AttentionProblem
from attnhub.testing.generators import indptr, page_table, paged_cache, poison_, random_tensor

#: Rows of K and V past the last request.
_SPARE_ROWS = 5

Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: q ``[qo_len, heads, dim]``, k and v ``[kv_len, kv_heads, dim]``.

    ``mask`` is ``[qo_len, kv_len]`` bool; ``blocks`` which key blocks each block row sees and
    ``inside`` what each seen block masks, ``[seen, r, c]``; ``variable`` the metadata of variable
    blocks. All are None where the problem has none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    blocks: Tensor | None = None
    inside: Tensor | None = None
    variable: VariableBlockKV | None = None
    q_offset: int = 0
    k_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A batch as the public API takes it."""

    q: Tensor
    kv: Tensor | tuple[Tensor, Tensor]
    qo_indptr: Tensor
    metadata: Any
    mask: Tensor | list[Tensor] | None
    offsets: dict[str, Tensor]


def requests(
    problem: AttentionProblem, lengths: Lengths, device: torch.device, generator: torch.Generator
) -> list[Request]:
    """Random requests with these ``(qo_len, kv_len)``."""
    return [_request(problem, n, m, device, generator) for n, m in lengths]


def _request(
    problem: AttentionProblem, n: int, m: int, device: torch.device, generator: torch.Generator
) -> Request:
    q_dtype, kv_dtype = getattr(torch, problem.q_dtype), getattr(torch, problem.kv_dtype)
    qo_heads, kv_heads = problem.num_qo_heads, problem.num_kv_heads

    def bits(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < 0.6

    blocks = inside = variable = None
    if problem.kv == "block_sparse" and problem.block is not None:
        r, c = problem.block
        blocks = bits(-(-n // r), -(-m // c))
        inside = bits(int(blocks.sum()), r, c)
    if problem.kv == "variable_blocks":
        variable = _variable_blocks(kv_heads, n, m, generator)
    return Request(
        q=random_tensor((n, qo_heads, problem.head_dim_qk), q_dtype, device, generator),
        k=random_tensor((m, kv_heads, problem.head_dim_qk), kv_dtype, device, generator),
        v=random_tensor((m, kv_heads, problem.head_dim_vo), kv_dtype, device, generator),
        mask=None if problem.mask == "none" else bits(n, m),
        blocks=blocks,
        inside=inside,
        variable=variable,
        q_offset=int(torch.randint(0, 100, (), generator=generator)),
        k_offset=int(torch.randint(0, 100, (), generator=generator)),
    )


def _variable_blocks(heads: int, n: int, m: int, generator: torch.Generator) -> VariableBlockKV:
    def sizes(total: int, count: int) -> Tensor:
        cuts = torch.randint(0, total + 1, (heads, count - 1), generator=generator).sort(1).values
        ends = (
            torch.nn.functional.pad(cuts, (1, 0)),
            torch.nn.functional.pad(cuts, (0, 1), value=total),
        )
        return (ends[1] - ends[0]).to(torch.int32)

    rows, cols = sizes(n, 3), sizes(m, 4)
    seen = torch.rand((heads, 3, 4), generator=generator) < 0.6
    return VariableBlockKV(rows, cols, seen)


def pack(
    problem: AttentionProblem,
    batch: Sequence[Request],
    device: torch.device,
    generator: torch.Generator,
    *,
    strided: bool,
    block_mask: bool = False,
) -> Packed:
    """The batch in the problem's storage.

    Args:
        problem: its kind of K/V, layout and where its metadata lie.
        batch: the requests; variable blocks take one.
        device: where they lie.
        generator: draws the order of pages.
        strided: leave poisoned gaps between rows, and keep K and V of a paged cache apart.
        block_mask: give the masks inside of blocks, where there are blocks.
    """
    where = device if problem.metadata == "device" else torch.device("cpu")
    kv_lens = [r.k.shape[0] for r in batch]
    # One that has no rows: there must be a tensor where nobody is.
    filled = [*batch, *requests(problem, [(0, 0)], device, generator)]
    q, k, v = (torch.cat([getattr(r, name) for r in filled]) for name in "qkv")
    if problem.kv == "paged":
        table = page_table(kv_lens, problem.page_size or 1, generator=generator)
        joined = k.shape == v.shape and not strided
        layout: Any = problem.layout
        kv = paged_cache(k, v, kv_lens, table, layout=layout, combined=joined, strided=strided)
        metadata: Any = PagedKV(
            *(x.to(where) for x in (table.indptr, table.indices, table.last_page_len))
        )
    else:
        kv = tuple(_ragged(x, problem.layout, strided=strided) for x in (k, v))  # type: ignore[assignment]
        metadata = _metadata(problem, batch, where, block_mask=block_mask)
    offsets = {}
    if problem.offsets:
        for name in ("q_offset", "k_offset"):
            values = [getattr(r, name) for r in batch]
            offsets[name] = torch.tensor(values, dtype=torch.int32, device=where)
    return Packed(
        q=rows_of(q, strided=strided),
        kv=kv,
        qo_indptr=indptr([r.q.shape[0] for r in batch]).to(where),
        metadata=metadata,
        mask=_mask(problem, batch, device, as_list=strided),
        offsets=offsets,
    )


def rows_of(x: Tensor, *, strided: bool, spare: int = 0) -> Tensor:
    """A copy whose last dim is contiguous; ``strided`` puts NaN between rows, ``spare`` after."""
    *inner, dim = x.shape[1:]
    gap = 16 // x.element_size() if strided else 0  # keeps the alignment that vector loads need
    whole = torch.empty(x.shape[0] + spare, *inner, dim + gap, dtype=x.dtype, device=x.device)
    poison_(whole)[: x.shape[0], ..., :dim] = x
    return whole[..., :dim]


def _ragged(x: Tensor, layout: str, *, strided: bool) -> Tensor:
    """K or V with spare rows at the end, ``[rows, heads, dim]`` or ``[heads, rows, dim]``."""
    if layout == "NHD":
        return rows_of(x, strided=strided, spare=_SPARE_ROWS)
    spare = poison_(x.new_empty(_SPARE_ROWS, *x.shape[1:]))
    return rows_of(torch.cat([x, spare]).transpose(0, 1), strided=strided)


def _metadata(
    problem: AttentionProblem,
    batch: Sequence[Request],
    where: torch.device,
    *,
    block_mask: bool,
) -> Any:
    """Metadata of every kind but paged."""
    if problem.kv == "variable_blocks":
        (request,) = batch
        assert request.variable is not None
        kv = request.variable
        return VariableBlockKV(
            kv.row_sizes.to(where), kv.col_sizes.to(where), kv.block_map.to(where)
        )
    starts = indptr([r.k.shape[0] for r in batch]).to(where)
    rows = [row for r in batch if r.blocks is not None for row in r.blocks]
    if problem.kv == "ragged":
        return RaggedKV(starts)
    seen = [row.nonzero().flatten() for row in rows]
    none = torch.empty(0, dtype=torch.int64)
    inside = [r.inside for r in batch if r.inside is not None]
    return BlockSparseKV(
        starts,
        indptr([len(columns) for columns in seen]).to(where),
        torch.cat([none, *seen]).to(where, torch.int32),
        torch.cat(inside).to(where) if block_mask and inside else None,
    )


def _mask(
    problem: AttentionProblem, batch: Sequence[Request], device: torch.device, *, as_list: bool
) -> Tensor | list[Tensor] | None:
    masks = [r.mask for r in batch if r.mask is not None]
    if problem.mask == "none":
        return None
    if problem.mask == "packed":
        return torch.cat([torch.empty(0, dtype=torch.uint8), *map(_packed, masks)]).to(device)
    if as_list:
        return [m.to(device) for m in masks]
    none = torch.empty(0, dtype=torch.bool)
    return torch.cat([none, *(m.flatten() for m in masks)]).to(device)


def _packed(mask: Tensor) -> Tensor:
    """Bits of one request, little order, padded to a byte."""
    bits = torch.nn.functional.pad(mask.flatten(), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits.to(torch.int64) << torch.arange(8)).sum(1).to(torch.uint8)
