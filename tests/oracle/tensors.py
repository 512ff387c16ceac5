"""A small problem as torch tensors, in the shapes that attention libraries take.

Every cache starts as NaN and only the slots that a request owns are written, so whatever reads more
than it may shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .attention import Array, BoolArray
from .facts import SmallProblem
from .values import (
    alibi_slopes,
    blocks,
    custom_mask,
    inv_freq,
    k_rows,
    q_rows,
    rng,
    rope_offsets,
    scale_of,
    sinks,
    torch_dtype,
    v_rows,
    variable_blocks,
)

Cache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedTensors:
    """Queries `[tokens, heads, dim]`, a paged cache and its int32 page table.

    The cache is `[pages, 2, page, kv_heads, dim]` (HND: `[pages, 2, kv_heads, page, dim]`) or a
    tuple of two without the 2. `last_page_len` is 0 for a request without keys.
    """

    q: torch.Tensor
    cache: Cache
    qo_indptr: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RaggedTensors:
    """Queries, keys and values of all requests end to end: `[tokens, heads, dim]`, int32 indptrs.

    With layout HND the keys and values are `[kv_heads, tokens, dim]`.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockTensors:
    """Block rows of all requests end to end, CSR in int32; columns count within the own request."""

    ragged: RaggedTensors
    block_indptr: torch.Tensor
    block_indices: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariableBlockTensors:
    """int32 sizes `[kv_heads, rows]` and `[kv_heads, cols]`, bool map `[kv_heads, rows, cols]`."""

    ragged: RaggedTensors
    row_sizes: torch.Tensor
    col_sizes: torch.Tensor
    block_map: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParameterTensors:
    """The values that features need, None where the feature is off.

    float32 `[qo_heads]` slopes and sinks; scales as a float or float32 per head (1.0 when off);
    float32 `inv_freq`; int32 offsets per request; the mask as 2-D bools, flat, and packed to bits.
    """

    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    q_scale: float | torch.Tensor
    k_scale: float | torch.Tensor
    v_scale: float | torch.Tensor
    inv_freq: torch.Tensor | None
    q_offset: torch.Tensor | None
    k_offset: torch.Tensor | None
    masks: tuple[torch.Tensor, ...] | None
    flat_mask: torch.Tensor | None
    packed_mask: torch.Tensor | None


def paged_tensors(problem: SmallProblem) -> PagedTensors:
    """Return the problem with keys and values in shuffled pages among pages no one owns."""
    _require_kind(problem, "paged")
    size = problem.storage.page_size
    lens = [kv_len for _, kv_len in problem.lens]
    owned = [-(-kv_len // size) for kv_len in lens]
    page_ids = rng(problem, "pages").permutation(sum(owned) + problem.storage.spare_pages)
    indptr = _offsets(owned)
    cache, keys, values = _empty_cache(problem, len(page_ids))
    for b, kv_len in enumerate(lens):
        k, v = k_rows(problem, b), v_rows(problem, b)
        for j in range(kv_len):
            page = int(page_ids[indptr[b] + j // size])
            keys[page, j % size] = k[j]
            values[page, j % size] = v[j]
    return PagedTensors(
        q=_queries(problem),
        cache=cache,
        qo_indptr=_int32(_offsets(qo_len for qo_len, _ in problem.lens)),
        indptr=_int32(indptr),
        indices=_int32([int(page) for page in page_ids[: sum(owned)]]),
        last_page_len=_int32([(kv_len - 1) % size + 1 if kv_len else 0 for kv_len in lens]),
    )


def ragged_tensors(problem: SmallProblem) -> RaggedTensors:
    """Return the problem with all requests' keys and values end to end; for any kind but paged."""
    _require_kind(problem, "ragged", "blocks", "variable_blocks")
    kv_indptr = _offsets(kv_len for _, kv_len in problem.lens)
    tokens, heads = kv_indptr[-1], problem.num_kv_heads
    stored_k, k = _empty_rows(problem, (tokens, heads, problem.head_dim_qk))
    stored_v, v = _empty_rows(problem, (tokens, heads, problem.head_dim_vo))
    for b in range(len(problem.lens)):
        k[kv_indptr[b] : kv_indptr[b + 1]] = k_rows(problem, b)
        v[kv_indptr[b] : kv_indptr[b + 1]] = v_rows(problem, b)
    return RaggedTensors(
        q=_queries(problem),
        k=stored_k,
        v=stored_v,
        qo_indptr=_int32(_offsets(qo_len for qo_len, _ in problem.lens)),
        kv_indptr=_int32(kv_indptr),
    )


def block_tensors(problem: SmallProblem) -> BlockTensors:
    """Return the problem with the blocks of `storage.block` that each block row sees."""
    _require_kind(problem, "blocks")
    rows = [row for b in range(len(problem.lens)) for row in blocks(problem, b)]
    return BlockTensors(
        ragged=ragged_tensors(problem),
        block_indptr=_int32(_offsets(len(row) for row in rows)),
        block_indices=_int32([column for row in rows for column in row]),
    )


def variable_block_tensors(problem: SmallProblem) -> VariableBlockTensors:
    """Return the problem's one request with the block sizes and map of each kv head."""
    _require_kind(problem, "variable_blocks")
    var = variable_blocks(problem)
    return VariableBlockTensors(
        ragged=ragged_tensors(problem),
        row_sizes=torch.tensor(var.row_sizes, dtype=torch.int32),
        col_sizes=torch.tensor(var.col_sizes, dtype=torch.int32),
        block_map=torch.from_numpy(var.block_map),
    )


def parameter_tensors(problem: SmallProblem) -> ParameterTensors:
    """Return the values that the problem's features need."""
    offsets = rope_offsets(problem)
    drawn = [custom_mask(problem, b) for b in range(len(problem.lens))]
    masks = [mask for mask in drawn if mask is not None]
    on = problem.features.custom_mask
    return ParameterTensors(
        alibi_slopes=_float32(alibi_slopes(problem)),
        sinks=_float32(sinks(problem)),
        q_scale=_scale(problem, "q"),
        k_scale=_scale(problem, "k"),
        v_scale=_scale(problem, "v"),
        inv_freq=_float32(inv_freq(problem)),
        q_offset=None if offsets is None else _int32([q for q, _ in offsets]),
        k_offset=None if offsets is None else _int32([k for _, k in offsets]),
        masks=tuple(torch.from_numpy(mask) for mask in masks) if on else None,
        flat_mask=_flat_mask(masks) if on else None,
        packed_mask=_packed_mask(masks) if on else None,
    )


def _require_kind(problem: SmallProblem, *kinds: str) -> None:
    if problem.storage.kind not in kinds:
        raise ValueError(
            f"a problem of kind {problem.storage.kind!r}: these tensors are for "
            f"{', '.join(kinds)}; call the function of its kind"
        )


def _empty_cache(problem: SmallProblem, pages: int) -> tuple[Cache, torch.Tensor, torch.Tensor]:
    """Return a cache of NaN and its keys and values as writable `[pages, page, kv_heads, dim]`."""
    size, heads = problem.storage.page_size, problem.num_kv_heads
    dim_qk, dim_vo = problem.head_dim_qk, problem.head_dim_vo
    if not problem.storage.joined:
        stored_k, k = _empty_rows(problem, (pages, size, heads, dim_qk))
        stored_v, v = _empty_rows(problem, (pages, size, heads, dim_vo))
        return (stored_k, stored_v), k, v
    if dim_qk != dim_vo:
        raise ValueError(
            f"a joined cache with head dims {dim_qk} and {dim_vo}: one tensor holds one dim; "
            "set joined=False"
        )
    stored, rows = _empty_rows(problem, (pages, 2, size, heads, dim_qk))
    return stored, rows[:, 0], rows[:, 1]


def _empty_rows(problem: SmallProblem, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return NaN in the problem's layout, and its view as `shape` `[..., tokens, heads, dim]`."""
    *outer, tokens, heads, dim = shape
    head_major = problem.storage.layout == "HND"
    laid = (*outer, heads, tokens, dim) if head_major else shape
    gap = 1 if problem.storage.strided else 0
    backing = torch.full([extent + gap for extent in laid], torch.nan)
    backing = backing.to(torch_dtype(problem.kv_dtype))
    stored = backing[tuple(slice(extent) for extent in laid)]
    return stored, stored.transpose(-3, -2) if head_major else stored


def _queries(problem: SmallProblem) -> torch.Tensor:
    empty = torch.empty(0, problem.num_qo_heads, problem.head_dim_qk)
    rows = [q_rows(problem, b) for b in range(len(problem.lens))]
    return torch.cat([empty.to(torch_dtype(problem.q_dtype)), *rows])


def _flat_mask(masks: Sequence[BoolArray]) -> torch.Tensor:
    flat = [mask.reshape(-1) for mask in masks]
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.bool_), *flat]))


def _packed_mask(masks: Sequence[BoolArray]) -> torch.Tensor:
    packed = [np.packbits(mask.reshape(-1), bitorder="little") for mask in masks]
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.uint8), *packed]))


def _scale(problem: SmallProblem, name: str) -> float | torch.Tensor:
    scale = scale_of(problem, name)
    if isinstance(scale, float):
        return scale
    return torch.from_numpy(scale).to(torch.float32)


def _float32(values: Array | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values).to(torch.float32)


def _int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _offsets(lengths: Iterable[int]) -> list[int]:
    """Return where each piece starts, and where the last one ends."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets
