"""What the paged KV cache operations mean: plain PyTorch.

Request ``b`` owns the pages ``indices[indptr[b]:indptr[b + 1]]``; its token at position ``p`` lies
in the ``p // page_size``-th of them, in slot ``p % page_size``. Everything else in the cache
belongs to nobody, may hold NaN, and is neither read nor written.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from attnhub.attn.kv import Scales
from attnhub.core import check
from attnhub.errors import InvalidArgument
from attnhub.quantization import reference as quantization
from attnhub.rope import reference as rope

__all__ = [
    "append",
    "append_mla",
    "batch_indices_positions",
    "locate",
    "rope_append",
    "seq_lens",
    "split_cache",
]

Layout = Literal["NHD", "HND"]

_PAGE_SHAPE: dict[str, str] = {"NHD": "page, heads, dim", "HND": "heads, page, dim"}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def append(
    k_new: Tensor,
    v_new: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    indptr: Tensor,
    indices: Tensor,
    layout: Layout = "NHD",
) -> None:
    """Write new keys and values into their slots of the cache, in place; waits for no device.

    Args:
        k_new: ``[tokens, heads, dim_k]``.
        v_new: ``[tokens, heads, dim_v]``.
        batch_indices: int32 ``[tokens]``, each token's request; -1 marks padding, which is skipped,
            and so is whatever leads outside the pages of a request.
        positions: int32 ``[tokens]``, each token's position in its request.
        k_cache: ``[pages, page, heads, dim_k]`` (NHD) or ``[pages, heads, page, dim_k]`` (HND), any
            strides, dtype of ``k_new``.
        v_cache: the same with ``dim_v``.
        indptr: int32 ``[batch + 1]``.
        indices: int32 ``[indptr[-1]]``, page ids; they already cover the new tokens.
        layout: order of the axes within a page.

    Raises:
        InvalidArgument: unknown layout, or a dtype that differs from the cache's. Nothing has been
            written then.

    Example:
        >>> cache = torch.zeros(1, 2, 1, 1)
        >>> one, zero = torch.ones(1, 1, 1), torch.zeros(1, dtype=torch.int32)
        >>> append(one, one, zero, zero + 1, cache, cache.clone(),
        ...        indptr=torch.tensor([0, 1]), indices=zero)
        >>> cache.flatten()
        tensor([0., 1.])
    """
    _check_layout(layout)
    if layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    _check_dtypes((k_new, k_cache), (v_new, v_cache))
    where = locate(batch_indices, positions, indptr, indices, k_cache.shape[:2])
    if where is not None:
        _store(k_cache, k_new, *where)
        _store(v_cache, v_new, *where)


def append_mla(
    ckv_new: Tensor,
    kpe_new: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    *,
    indptr: Tensor,
    indices: Tensor,
) -> None:
    """`append` for the latent cache of MLA, which has one row per token and no heads.

    Args:
        ckv_new: ``[tokens, dim_ckv]``, compressed KV.
        kpe_new: ``[tokens, dim_kpe]``, the key part that carries the position.
        batch_indices: as in `append`.
        positions: as in `append`.
        ckv_cache: ``[pages, page, dim_ckv]``, any strides; both may be slices of one tensor.
        kpe_cache: ``[pages, page, dim_kpe]``.
        indptr: as in `append`.
        indices: as in `append`.

    Raises:
        InvalidArgument: as `append`.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024).
    """
    _check_dtypes((ckv_new, ckv_cache), (kpe_new, kpe_cache))
    where = locate(batch_indices, positions, indptr, indices, ckv_cache.shape[:2])
    if where is not None:
        _store(ckv_cache, ckv_new, *where)
        _store(kpe_cache, kpe_new, *where)


def rope_append(
    qkv: tuple[Tensor, Tensor, Tensor],
    cos_sin_cache: Tensor,
    caches: tuple[Tensor, Tensor],
    batch_indices: Tensor,
    positions: Tensor,
    *,
    table: tuple[Tensor, Tensor],
    scales: Scales,
    q_dtype: torch.dtype,
    interleaved: bool = False,
    layout: Layout = "NHD",
) -> Tensor:
    """Turn queries and keys by their positions, then `append` keys and values.

    Turning and scaling are in float32; what is stored is rounded once.

    Args:
        qkv: queries ``[tokens, qo_heads, dim_k]``, keys ``[tokens, kv_heads, dim_k]`` and values
            ``[tokens, kv_heads, dim_v]``.
        cos_sin_cache: float32 ``[max_position, rotary_dim]``, as in
            `attnhub.rope.reference.apply_rope_cos_sin_cache`; padding has no row there, and its
            queries are not turned.
        caches: of keys and of values, as in `append`, of any dtype.
        batch_indices: as in `append`.
        positions: as in `append`; each is a row of ``cos_sin_cache`` too.
        table: ``indptr`` and ``indices``, as in `append`.
        scales: what FP8 is divided by before it is stored.
        q_dtype: of the result.
        interleaved: as in `attnhub.rope.reference.apply_rope_cos_sin_cache`.
        layout: as in `append`.

    Returns:
        the turned queries, stored as ``q_dtype``.
    """
    is_padding = batch_indices < 0
    rows = positions.masked_fill(is_padding, 0)

    def turned(x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        y = rope.apply_rope_cos_sin_cache(wide, rows, cos_sin_cache, interleaved=interleaved)
        return torch.where(is_padding[:, None, None], wide, y)

    q, k, v = qkv
    append(
        _stored(turned(k), caches[0].dtype, scales.k),
        _stored(v, caches[1].dtype, scales.v),
        batch_indices,
        positions,
        *caches,
        indptr=table[0],
        indices=table[1],
        layout=layout,
    )
    return _stored(turned(q), q_dtype, scales.q)


def locate(
    batch_indices: Tensor,
    positions: Tensor,
    indptr: Tensor,
    indices: Tensor,
    cache_size: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Which token goes to which slot of which page, without reading a value on the host.

    Tokens that go nowhere stay in the result, since how many there are is a value too. Each of them
    repeats a token that goes somewhere, and so writes the same row to the same place.

    Args:
        batch_indices: int32 ``[tokens]``; -1 marks padding.
        positions: int32 ``[tokens]``.
        indptr: int32 ``[batch + 1]``.
        indices: int32, at least ``indptr[-1]`` page ids.
        cache_size: pages of the cache, and slots per page.

    Returns:
        int64 ``[tokens]`` each: token, page id and slot; and bool ``[]``: whether any token goes
        anywhere, without which the others mean nothing. None if sizes alone say that none does.

    Example:
        >>> ids = torch.tensor([7, 4], dtype=torch.int32)
        >>> locate(torch.tensor([0, -1]), torch.tensor([9, 0]), torch.tensor([0, 2]), ids, (8, 8))
        (tensor([0, 0]), tensor([4, 4]), tensor([1, 1]), tensor(True))
    """
    num_pages, page_size = cache_size
    num_tokens, batch = batch_indices.numel(), indptr.numel() - 1
    if 0 in (num_tokens, batch, indices.numel(), num_pages):
        return None
    request = batch_indices.clamp(0, batch - 1).long()
    position = positions.long()
    entry = indptr[request].long() + position.div(page_size, rounding_mode="floor")
    page = indices[entry.clamp(0, indices.numel() - 1)].long()
    inside = (request == batch_indices) & (position >= 0)
    inside &= (entry >= 0) & (entry < indptr[request + 1]) & (entry < indices.numel())
    inside &= (page >= 0) & (page < num_pages)
    token = torch.arange(num_tokens, device=inside.device)
    token = token.where(inside, inside.int().argmax())
    return token, page.clamp(0, num_pages - 1)[token], (position % page_size)[token], inside.any()


def batch_indices_positions(
    append_indptr: Tensor, seq_lens: Tensor, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Request and position of every appended token; never waits for the device.

    Args:
        append_indptr: int32 ``[batch + 1]``, where each request's new tokens start.
        seq_lens: int32 ``[batch]``, lengths *after* the append, so that the new tokens of a request
            are its last ones.
        num_tokens: rows of the result; those from ``append_indptr[-1]`` on are padding, -1 in both.

    Returns:
        batch_indices and positions, both int32 ``[num_tokens]``.

    Example:
        >>> batch_indices_positions(torch.tensor([0, 1, 3]), torch.tensor([5, 2]), 4)
        (tensor([ 0,  1,  1, -1], dtype=torch.int32), tensor([ 4,  0,  1, -1], dtype=torch.int32))
    """
    device = append_indptr.device
    if seq_lens.numel() == 0:
        padding = torch.full((num_tokens,), -1, dtype=torch.int32, device=device)
        return padding, padding.clone()
    ends = append_indptr[1:].contiguous()
    token = torch.arange(num_tokens, dtype=ends.dtype, device=device)
    # The owner is the first request that ends after the token; padding lies after every end.
    request = torch.searchsorted(ends, token, right=True)
    is_padding = request == ends.numel()
    request = request.clamp(max=ends.numel() - 1)
    position = seq_lens[request] - ends[request] + token
    return (
        request.masked_fill(is_padding, -1).to(torch.int32),
        position.masked_fill(is_padding, -1).to(torch.int32),
    )


def seq_lens(indptr: Tensor, last_page_len: Tensor, page_size: int) -> Tensor:
    """Number of tokens each request has: full pages and what is used of the last one.

    Args:
        indptr: int32 ``[batch + 1]``.
        last_page_len: int32 ``[batch]``, from 1 to page_size; ignored where a request has no page.
        page_size: slots per page.

    Returns:
        int32 ``[batch]``.

    Example:
        >>> seq_lens(torch.tensor([0, 2, 2]), torch.tensor([3, 0]), page_size=16)
        tensor([19,  0], dtype=torch.int32)
    """
    pages = indptr.diff()
    lengths = (pages - 1) * page_size + last_page_len
    return torch.where(pages > 0, lengths, 0).to(torch.int32)


def split_cache(
    kv_cache: Tensor | tuple[Tensor, Tensor], layout: Layout = "NHD"
) -> tuple[Tensor, Tensor]:
    """The key and value caches as 4-D views, axes in the cache's own layout.

    Args:
        kv_cache: one tensor ``[pages, 2, page, heads, dim]`` (NHD) or
            ``[pages, 2, heads, page, dim]`` (HND), keys first; or a tuple of two tensors without
            the axis of 2, needed where the two dims differ.
        layout: order of the axes within a page.

    Raises:
        InvalidArgument: unknown layout, wrong number of axes, or keys and values that differ in
            more than dim.

    Example:
        >>> [part.shape for part in split_cache(torch.zeros(9, 2, 16, 8, 128))]
        [torch.Size([9, 16, 8, 128]), torch.Size([9, 16, 8, 128])]
    """
    _check_layout(layout)
    page = _PAGE_SHAPE[layout]
    if isinstance(kv_cache, Tensor):
        if kv_cache.ndim != 5 or kv_cache.shape[1] != 2:
            raise InvalidArgument(
                f"kv_cache has shape {list(kv_cache.shape)}; with layout {layout} give "
                f"[pages, 2, {page}], or a tuple of two tensors [pages, {page}]"
            )
        k_cache, v_cache = kv_cache.unbind(1)
        return k_cache, v_cache
    check.pair(kv_cache, "kv_cache", "(k_cache, v_cache)")
    k_cache, v_cache = kv_cache
    if k_cache.ndim != 4 or v_cache.ndim != 4 or k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidArgument(
            f"kv_cache holds shapes {list(k_cache.shape)} and {list(v_cache.shape)}; with layout "
            f"{layout} give two tensors [pages, {page}] that differ at most in dim"
        )
    return k_cache, v_cache


def _store(
    cache: Tensor, new: Tensor, token: Tensor, page: Tensor, slot: Tensor, any_inside: Tensor
) -> None:
    # Moved as integers: not every device can index float8.
    bits = _BITS[cache.element_size()]
    target = cache.view(bits)
    # Where nothing is to be written, every row gets back what it holds.
    target[page, slot] = torch.where(any_inside, new.view(bits)[token], target[page, slot])


def _stored(x: Tensor, dtype: torch.dtype, scale: Tensor | float) -> Tensor:
    """``x`` ``[tokens, heads, dim]`` as ``dtype``; FP8 is divided by the scale, one or per head."""
    if dtype not in check.FP8:
        return x.to(dtype)
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=torch.float32, device=x.device)
    if scale.numel() == 1:
        return quantization.quantize(x, dtype, scale=scale.reshape([]))[0]
    return quantization.quantize(x, dtype, axis=1, scale=scale)[0]


def _check_dtypes(*pairs: tuple[Tensor, Tensor]) -> None:
    for new, cache in pairs:
        if new.dtype != cache.dtype:
            raise InvalidArgument(
                f"new entries are {new.dtype}, the cache is {cache.dtype}; convert or quantise the "
                "entries first"
            )


def _check_layout(layout: str) -> None:
    if layout not in _PAGE_SHAPE:
        raise InvalidArgument(f"layout={layout!r}; give 'NHD' or 'HND'")
