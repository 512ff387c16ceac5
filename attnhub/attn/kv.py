"""How K and V are laid out (``Paged``, ...), and which each request owns (``PagedKV``, ...).

Layouts are static and go to the constructor; metadata change per step and go to ``plan()``.
Index tensors are int32, on the host or on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnhub.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAYOUTS = ("NHD", "HND")


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout={layout!r}: use 'NHD' ([.., len, heads, dim]) or 'HND'")


def check_least(least: int, **values: object) -> None:
    """Require integers that are at least ``least``."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidArgument(f"{name}={value!r}: needs an integer >= {least}")


def check_bounds(max_qo_len: object, max_kv_len: object) -> None:
    """Check upper bounds of lengths, each of which may be None."""
    for name, value in (("max_qo_len", max_qo_len), ("max_kv_len", max_kv_len)):
        if value is not None:
            check_least(0, **{name: value})


@dataclass(frozen=True, slots=True)
class Paged:
    """A paged KV cache: one 5-D tensor or a (K, V) tuple of 4-D tensors, any strides.

    NHD: ``[pages, 2, page_size, kv_heads, dim]`` or two ``[pages, page_size, kv_heads, dim]``;
    HND: ``[pages, 2, kv_heads, page_size, dim]`` or two ``[pages, kv_heads, page_size, dim]``.
    """

    page_size: int
    layout: str = "NHD"

    def __post_init__(self) -> None:
        check_least(1, page_size=self.page_size)
        _check_layout(self.layout)


@dataclass(frozen=True, slots=True)
class Ragged:
    """K and V of all requests end to end: ``[kv_tokens, kv_heads, dim]`` (NHD) or HND."""

    layout: str = "NHD"

    def __post_init__(self) -> None:
        _check_layout(self.layout)


@dataclass(frozen=True, slots=True)
class BlockSparse:
    """Ragged K and V of which each block of ``r`` queries sees a list of blocks of ``c`` keys."""

    r: int
    c: int
    layout: str = "NHD"

    def __post_init__(self) -> None:
        check_least(1, r=self.r, c=self.c)
        _check_layout(self.layout)


@dataclass(frozen=True, slots=True)
class VariableBlocks:
    """Ragged K and V with blocks of varying sizes and a block map per KV head."""

    layout: str = "NHD"

    def __post_init__(self) -> None:
        _check_layout(self.layout)


KVLayout = Paged | Ragged | BlockSparse | VariableBlocks


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Page table in CSR form.

    ``indptr [batch + 1]``: request b owns ``indices[indptr[b]:indptr[b+1]]``, page ids in order;
    ``last_page_len [batch]``: tokens in its last page, 1 to page_size (0 if it has no page).
    """

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor


@dataclass(frozen=True, slots=True)
class RaggedKV:
    """``indptr [batch + 1]``: request b owns K/V rows ``indptr[b]:indptr[b+1]``."""

    indptr: Tensor


@dataclass(frozen=True, slots=True)
class BlockSparseKV:
    """Block-sparse rows (BSR) over ragged K/V.

    ``indptr [batch + 1]`` as in :class:`RaggedKV`. Request b with n queries has ceil(n / r) block
    rows; those of all requests lie end to end. ``block_indptr [block_rows + 1]`` and
    ``block_indices``: block row i sees the key blocks ``block_indices[block_indptr[i]:...]``, which
    count blocks of c keys from the start of the request's own keys. ``block_mask [nnz, r, c]``
    (bool, optional) masks inside the blocks.
    """

    indptr: Tensor
    block_indptr: Tensor
    block_indices: Tensor
    block_mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class VariableBlockKV:
    """Variable blocks of one request, per KV head.

    ``row_sizes [kv_heads, MB]`` (sum: queries) and ``col_sizes [kv_heads, NB]`` (sum: keys), int32;
    ``block_map [kv_heads, MB, NB]`` bool: whether a block is seen.
    """

    row_sizes: Tensor
    col_sizes: Tensor
    block_map: Tensor


KVMetadata = PagedKV | RaggedKV | BlockSparseKV | VariableBlockKV


@dataclass(frozen=True, slots=True)
class DTypes:
    """dtypes of queries, of K/V and of the output; each a torch dtype or its name."""

    q: torch.dtype | str
    kv: torch.dtype | str
    out: torch.dtype | str


@dataclass(frozen=True, slots=True)
class Scales:
    """What stored values are multiplied by: numbers, one-element or per-head float32 tensors.

    ``q`` per query head ``[num_qo_heads]``; ``k`` and ``v`` per KV head ``[num_kv_heads]``.
    """

    q: float | Tensor = 1.0
    k: float | Tensor = 1.0
    v: float | Tensor = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Upper bounds that let ``plan()`` refill fixed buffers between replays of a CUDA graph.

    ``max_mask_bytes`` reserves room for a packed custom mask, ``offsets`` for q_offset/k_offset.
    ``max_qo_len`` and ``max_kv_len`` bound the longest request, None if unknown: ``max_qo_len=1``
    says that only decode will be replayed, which chooses the backend and its grid.
    """

    max_batch: int
    max_qo_tokens: int
    max_pages: int = 0
    max_mask_bytes: int = 0
    offsets: bool = False
    max_qo_len: int | None = None
    max_kv_len: int | None = None

    def __post_init__(self) -> None:
        check_least(1, max_batch=self.max_batch, max_qo_tokens=self.max_qo_tokens)
        check_least(0, max_pages=self.max_pages, max_mask_bytes=self.max_mask_bytes)
        check_bounds(self.max_qo_len, self.max_kv_len)
        if not isinstance(self.offsets, bool):
            raise InvalidArgument(f"offsets={self.offsets!r}: give True or False")


def dims(head_dim: int | Sequence[int]) -> tuple[int, int]:
    """``(qk, vo)`` from one head dimension or two."""
    pair = (head_dim, head_dim) if isinstance(head_dim, int) else tuple(head_dim)
    if len(pair) != 2:
        raise InvalidArgument(f"head_dim={head_dim!r}: give one integer, or (qk, vo)")
    check_least(1, head_dim_qk=pair[0], head_dim_vo=pair[1])
    return pair[0], pair[1]
