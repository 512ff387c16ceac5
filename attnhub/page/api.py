"""Appending to a paged KV cache, and the index tensors that say where.

Values are copied bit for bit: entries and cache share one dtype, float16, bfloat16, float32 or
float8. Index tensors are int32 and lie on the device of what they index. On the host their values
are checked on every call; on a device (and under torch.compile) they are not, since reading them
would wait for it: a token that leads outside its request's pages is then the caller's fault. The
built-in backend drops such a token, without waiting for the device; another may write anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnhub.attn.kv import PagedKV
from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.page import checks, reference
from attnhub.page.problem import (
    AppendPagedKVProblem,
    AppendPagedMLAProblem,
    BatchIndicesPositionsProblem,
    SeqLensProblem,
)
from attnhub.page.reference import Layout


def _append_facts(new: Tensor) -> dict[str, Any]:
    return {
        "device": devices.describe(new.device),
        "extent": Extent(tokens=new.shape[0]).bucketed(),
        "dtype": check.dtype_name(new.dtype),
    }


def _kv_problem(k: Tensor, v: Tensor, k_cache: Tensor, *rest: Any) -> AppendPagedKVProblem:
    layout: Layout = rest[-1]
    return AppendPagedKVProblem(
        **_append_facts(k),
        page_size=k_cache.shape[1 if layout == "NHD" else 2],
        num_kv_heads=k.shape[1],
        head_dim_qk=k.shape[2],
        head_dim_vo=v.shape[2],
        layout=layout,
    )


def _mla_problem(ckv: Tensor, kpe: Tensor, ckv_cache: Tensor, *_: Any) -> AppendPagedMLAProblem:
    return AppendPagedMLAProblem(
        **_append_facts(ckv),
        page_size=ckv_cache.shape[1],
        dim_ckv=ckv.shape[1],
        dim_kpe=kpe.shape[1],
    )


def _append_key(a: Tensor, b: Tensor, a_cache: Tensor, *rest: Any) -> tuple[Any, ...]:
    shape = a.shape
    return a.device, a.dtype, bucket(shape[0]), shape[1:], b.shape[-1], a_cache.shape[1:], rest[-1]


_append_paged_kv = FunctionalOp(
    "page.append_paged_kv",
    "(Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor indptr, "
    "Tensor indices, Tensor batch_indices, Tensor positions, str layout) -> ()",
    key=_append_key,
    problem=_kv_problem,
)
_append_paged_mla = FunctionalOp(
    "page.append_paged_mla",
    "(Tensor ckv, Tensor kpe, Tensor(a!) ckv_cache, Tensor(b!) kpe_cache, Tensor indptr, "
    "Tensor indices, Tensor batch_indices, Tensor positions) -> ()",
    key=lambda *args: _append_key(*args[:-1], "NHD"),
    problem=_mla_problem,
)
_get_batch_indices_positions = FunctionalOp(
    "page.get_batch_indices_positions",
    "(Tensor append_indptr, Tensor seq_lens, Tensor(a!) batch_indices, Tensor(b!) positions) -> ()",
    key=lambda indptr, lens, out, _: (out.device, bucket(lens.shape[0]), bucket(out.shape[0])),
    problem=lambda indptr, lens, out, _: BatchIndicesPositionsProblem(
        device=devices.describe(out.device),
        extent=Extent(batch=lens.shape[0], tokens=out.shape[0]).bucketed(),
    ),
)
_get_seq_lens = FunctionalOp(
    "page.get_seq_lens",
    "(Tensor indptr, Tensor last_page_len, Tensor(a!) out, int page_size) -> ()",
    key=lambda indptr, last, out, _: (out.device, bucket(out.shape[0])),
    problem=lambda indptr, last, out, _: SeqLensProblem(
        device=devices.describe(out.device), extent=Extent(batch=out.shape[0]).bucketed()
    ),
)


def append_paged_kv(
    k_new: Tensor,
    v_new: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    table: PagedKV,
    batch_indices: Tensor,
    positions: Tensor,
    *,
    layout: Layout = "NHD",
) -> None:
    """Write new keys and values into the cache, in place.

    Token t goes to position ``positions[t]`` of request ``batch_indices[t]``. No two tokens may go
    to the same place; nothing else in the cache is read or written.

    Args:
        k_new: ``[tokens, kv_heads, dim_k]``; tokens and heads may be strided.
        v_new: ``[tokens, kv_heads, dim_v]``, dtype of ``k_new``.
        kv_cache: one tensor ``[pages, 2, page, kv_heads, dim]`` (NHD) or
            ``[pages, 2, kv_heads, page, dim]`` (HND), or a tuple of two without the axis of 2; any
            strides with a contiguous last dim, dtype of ``k_new``.
        table: the pages of each request, those of the new tokens included; ``last_page_len`` is not
            read.
        batch_indices: int32 ``[tokens]``; -1 marks padding, which is skipped.
        positions: int32 ``[tokens]``; see :func:`get_batch_indices_positions`.
        layout: ``"NHD"`` or ``"HND"``.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride; index tensors on the host that lead
            outside a request's pages. Nothing has been written then.

    Equivalent PyTorch, for NHD::

        page = table.indices[table.indptr[batch_indices] + positions // page_size]
        k_cache[page, positions % page_size] = k_new

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023).

    Example::

        batch_indices, positions = get_batch_indices_positions(append_indptr, seq_lens, len(k_new))
        append_paged_kv(k_new, v_new, kv_cache, table, batch_indices, positions)
    """
    k_cache, v_cache = reference.split_cache(kv_cache, layout)
    if layout == "NHD":
        pages, page, heads, dim_k = k_cache.shape
    else:
        pages, heads, page, dim_k = k_cache.shape
    check.is_tensor(k_new, "k_new")
    tokens = k_new.shape[0] if k_new.dim() else 0
    checks.entries(k_new, k_cache, "k_new", (tokens, heads, dim_k), k_new)
    checks.entries(v_new, v_cache, "v_new", (tokens, heads, v_cache.shape[3]), k_new)
    checks.where(table, batch_indices, positions, k_new, (pages, page))
    _append_paged_kv(
        k_new, v_new, k_cache, v_cache,
        table.indptr, table.indices, batch_indices, positions, layout,
    )  # fmt: skip


def append_paged_mla(
    ckv: Tensor,
    kpe: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    table: PagedKV,
    batch_indices: Tensor,
    positions: Tensor,
) -> None:
    """:func:`append_paged_kv` for the latent cache of MLA: one row per token, no heads.

    Args:
        ckv: ``[tokens, dim_ckv]``, the compressed K/V (512 in DeepSeek's models).
        kpe: ``[tokens, dim_kpe]``, the part of the key that carries the position (64).
        ckv_cache: ``[pages, page, dim_ckv]``, any strides with a contiguous last dim; both caches
            may be slices of one tensor.
        kpe_cache: ``[pages, page, dim_kpe]``.
        table: as there.
        batch_indices: as there.
        positions: as there.

    Raises:
        InvalidArgument: as there.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024).

    Example::

        append_paged_mla(ckv, kpe, ckv_cache, kpe_cache, table, batch_indices, positions)
    """
    for name, given in (("ckv", ckv), ("ckv_cache", ckv_cache), ("kpe_cache", kpe_cache)):
        check.is_tensor(given, name)
    if ckv_cache.dim() != 3:
        check.shape(ckv_cache, "ckv_cache", ("pages", "page", "dim_ckv"))
    pages, page, dim_ckv = ckv_cache.shape
    if kpe_cache.dim() != 3 or kpe_cache.shape[:2] != (pages, page):
        check.shape(kpe_cache, "kpe_cache", (pages, page, "dim_kpe"))
    tokens = ckv.shape[0] if ckv.dim() else 0
    checks.entries(ckv, ckv_cache, "ckv", (tokens, dim_ckv), ckv)
    checks.entries(kpe, kpe_cache, "kpe", (tokens, kpe_cache.shape[2]), ckv)
    checks.where(table, batch_indices, positions, ckv, (pages, page))
    _append_paged_mla(
        ckv, kpe, ckv_cache, kpe_cache, table.indptr, table.indices, batch_indices, positions
    )


def get_batch_indices_positions(
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

    Raises:
        InvalidArgument: wrong shape, dtype or device; on the host also a request that would be
            shorter than its new tokens, and ``num_tokens`` below their number.

    Example::

        batch_indices, positions = get_batch_indices_positions(append_indptr, seq_lens, len(k_new))
    """
    batch = checks.indptr(append_indptr, "append_indptr", append_indptr)
    checks.index(seq_lens, "seq_lens", batch, append_indptr)
    check.integer(num_tokens, "num_tokens", 0)
    if append_indptr.is_cpu and not torch.compiler.is_compiling():
        checks.lengths(append_indptr, seq_lens, num_tokens)
    batch_indices = append_indptr.new_empty(num_tokens)
    positions = append_indptr.new_empty(num_tokens)
    _get_batch_indices_positions(append_indptr, seq_lens, batch_indices, positions)
    return batch_indices, positions


def get_seq_lens(table: PagedKV, page_size: int) -> Tensor:
    """Number of tokens of each request: its full pages and what is used of the last one.

    Args:
        table: a page table.
        page_size: slots per page.

    Returns:
        int32 ``[batch]`` on the table's device; never waits for it.

    Raises:
        InvalidArgument: wrong shape, dtype or device; on the host also a ``last_page_len`` that is
            not 1 to ``page_size`` (a request without pages may have any).

    Example::

        seq_lens = get_seq_lens(table, page_size=16)
    """
    checks.page_table(table)
    indptr, last = table.indptr, table.last_page_len
    batch = checks.indptr(indptr, "table.indptr", indptr)
    checks.index(last, "table.last_page_len", batch, indptr)
    check.integer(page_size, "page_size", 1)
    if indptr.is_cpu and not torch.compiler.is_compiling():
        metadata.indptr_values(indptr, "table.indptr")
        used = torch.where(indptr.diff() > 0, last, 1)
        what = "tokens in the last page of a request"
        metadata.in_range(used, "table.last_page_len", 1, page_size + 1, what)
    out = torch.empty_like(last)
    _get_seq_lens(indptr, last, out, page_size)
    return out
