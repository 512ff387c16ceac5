"""Rotary embedding, FP8 quantisation and the append to a paged cache, as one operation.

Engines do these three in a row in every layer; done at once, queries, keys and values pass through
memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnhub.attn import inputs
from attnhub.attn.inputs import NO_SCALES
from attnhub.attn.kv import PagedKV, Scales
from attnhub.core import check, metadata
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.page import checks, reference
from attnhub.page.problem import RopeAppendPagedKVProblem
from attnhub.page.reference import Layout
from attnhub.rope.tables import check_cos_sin

Triple = tuple[Tensor, Tensor, Tensor]


def _key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin_cache: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    *rest: Any,
) -> tuple[Any, ...]:
    tokens, *queries = q.shape
    return (
        q.device,
        bucket(tokens),
        q.dtype,
        q_out.dtype,
        k_cache.dtype,
        *queries,
        *v.shape[1:],
        cos_sin_cache.shape[1],
        k_cache.shape[1:],
        *rest[-2:],
    )


def _problem(*args: Any) -> RopeAppendPagedKVProblem:
    key = _key(*args)
    device, tokens, dtype, q_dtype, kv_dtype = key[:5]
    qo_heads, dim_qk, kv_heads, dim_vo, rotary_dim, (first, second, _), interleaved, layout = key[
        5:
    ]
    return RopeAppendPagedKVProblem(
        device=devices.describe(device),
        extent=Extent(tokens=tokens),
        dtype=check.dtype_name(dtype),
        page_size=first if layout == "NHD" else second,
        num_qo_heads=qo_heads,
        num_kv_heads=kv_heads,
        head_dim_qk=dim_qk,
        head_dim_vo=dim_vo,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
        fp8="none" if kv_dtype == dtype else check.dtype_name(kv_dtype),
        fp8_q=q_dtype != dtype,
        layout=layout,
    )


def _flatten(*args: Any) -> tuple[Any, ...]:
    scales: Scales = args[7]
    return (*args[:7], *inputs.split_scales(q=scales.q, k=scales.k, v=scales.v), *args[8:])


def _unflatten(*flat: Any) -> tuple[Any, ...]:
    return (*flat[:7], Scales(*inputs.join_scales(*flat[7:9])), *flat[9:])


_rope_append_paged_kv = FunctionalOp(
    "page.rope_append_paged_kv",
    "(Tensor q, Tensor k, Tensor v, Tensor cos_sin_cache, Tensor(a!) q_out, Tensor(b!) k_cache, "
    "Tensor(c!) v_cache, Tensor?[] scale_tensors, float[] scale_values, Tensor indptr, "
    "Tensor indices, Tensor batch_indices, Tensor positions, bool interleaved, str layout) -> ()",
    key=_key,
    problem=_problem,
    flatten=_flatten,
    unflatten=_unflatten,
    facts=2,
)


def rope_append_paged_kv(
    qkv: Tensor | tuple[Tensor, Tensor, Tensor],
    cos_sin_cache: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    table: PagedKV,
    batch_indices: Tensor,
    positions: Tensor,
    *,
    interleaved: bool = False,
    layout: Layout = "NHD",
    scales: Scales = NO_SCALES,
    out: Tensor | None = None,
) -> Tensor:
    """Queries turned by their positions; turned keys and values are appended to the cache.

    The same as :func:`attnhub.rope.apply_rope_cos_sin`, for an FP8 cache
    :func:`attnhub.quantization.quantize_fp8`, then :func:`append_paged_kv`, but for one rounding
    instead of two: between them, everything is float32.

    Args:
        qkv: one tensor ``[tokens, qo_heads + 2 * kv_heads, dim]``, queries first, as a projection
            gives it; or a tuple of ``q [tokens, qo_heads, dim_k]``, ``k [tokens, kv_heads, dim_k]``
            and ``v [tokens, kv_heads, dim_v]``. float16, bfloat16 or float32, any strides with a
            contiguous last dimension.
        cos_sin_cache: float32 ``[max_position, rotary_dim]``, see
            :func:`attnhub.rope.cos_sin_cache`. Its width is how many leading elements of a head of
            queries and keys turn.
        kv_cache: as in :func:`append_paged_kv`; of the dtype of ``qkv``, or FP8.
        table: as there.
        batch_indices: as there; -1 marks padding: nothing is stored, and its query does not turn.
        positions: int32 ``[tokens]``, by which a token turns, and where it goes in its request.
        interleaved: pairs ``(2i, 2i + 1)`` turn instead of ``(i, i + rotary_dim/2)``.
        layout: ``"NHD"`` or ``"HND"``.
        scales: of FP8, as attention takes them afterwards: ``x / scale`` is stored, and what
            exceeds the range saturates. Numbers, one-element or per-head float32 tensors.
        out: ``[tokens, qo_heads, dim_k]`` for the queries, of their dtype, or of the cache's FP8 to
            have them quantised. May be the queries themselves (the same memory, the same strides).

    Returns:
        the turned queries, ``out`` if given, else new and of their dtype.

    Raises:
        InvalidArgument: wrong shape, dtype, device or stride; scales of what is not stored as FP8;
            on the host also index tensors that lead outside a request's pages or outside
            ``cos_sin_cache``. Nothing has been written then.

    Equivalent PyTorch, for pairs ``(i, i + dim/2)`` and an FP8 cache of one scale::

        q, k = attnhub.rope.apply_rope_cos_sin(q.float(), k.float(), positions, cos_sin_cache)
        k, _ = attnhub.quantization.quantize_fp8(k, k_cache.dtype, scale=k_scale)
        v, _ = attnhub.quantization.quantize_fp8(v, v_cache.dtype, scale=v_scale)
        append_paged_kv(k, v, kv_cache, table, batch_indices, positions)

    Example::

        q = rope_append_paged_kv(qkv, cos_sin_cache, kv_cache, table, batch_indices, positions)
    """
    k_cache, v_cache = reference.split_cache(kv_cache, layout)
    page, heads = (1, 2) if layout == "NHD" else (2, 1)
    q, k, v = _split(qkv, k_cache.shape[heads], k_cache.shape[3], v_cache.shape[3])
    _check_projected(q, k, v)
    _check_caches(k_cache, v_cache, q)
    checks.where(table, batch_indices, positions, q, (k_cache.shape[0], k_cache.shape[page]))
    _check_table(cos_sin_cache, batch_indices, positions, q)
    out = _output(out, q, k_cache)
    _check_scales(scales, q, k, k_cache, out)
    _rope_append_paged_kv(
        q, k, v, cos_sin_cache, out, k_cache, v_cache, scales,
        table.indptr, table.indices, batch_indices, positions, interleaved, layout,
    )  # fmt: skip
    return out


def _split(qkv: Tensor | Sequence[Tensor], kv_heads: int, dim_k: int, dim_v: int) -> Triple:
    """Queries, keys and values; what the cache says of their shapes holds afterwards."""
    if isinstance(qkv, Tensor):
        if qkv.dim() != 3 or qkv.shape[1] <= 2 * kv_heads or not qkv.shape[2] == dim_k == dim_v:
            check.fail(
                f"qkv has shape {list(qkv.shape)}; for this cache give [tokens, qo_heads + "
                f"{2 * kv_heads}, {dim_k}]"
                + (f", or a tuple (q, k, v), as v has {dim_v}" if dim_k != dim_v else "")
            )
        qo_heads = qkv.shape[1] - 2 * kv_heads
        q, k, v = qkv.split((qo_heads, kv_heads, kv_heads), dim=1)
        return q, k, v
    if not isinstance(qkv, (tuple, list)):
        check.fail(f"qkv is a {type(qkv).__name__}, needs one tensor or a tuple (q, k, v)")
    if len(qkv) != 3:
        check.fail(f"qkv has {len(qkv)} entries, needs a tuple (q, k, v) of three tensors")
    q, k, v = qkv
    for name, x in (("q", q), ("k", k), ("v", v)):
        check.is_tensor(x, name)
    if q.dim() != 3 or not q.shape[1] or q.shape[2] != dim_k:
        check.shape(q, "q", ("tokens", "qo_heads", dim_k))
    if k.shape != (q.shape[0], kv_heads, dim_k):
        check.shape(k, "k", (q.shape[0], kv_heads, dim_k))
    if v.shape != (q.shape[0], kv_heads, dim_v):
        check.shape(v, "v", (q.shape[0], kv_heads, dim_v))
    return q, k, v


def _check_projected(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dtype not in check.FLOATS:
        check.dtype(q, "q", check.FLOATS)
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        if x.dtype != q.dtype:
            check.dtype(x, name, (q.dtype,))
        if x.device != q.device:
            check.device(x, name, q.device, "q")
        if x.stride(2) != 1:
            check.last_contiguous(x, name)
    check.no_grad(q, k, v)


def _check_caches(k_cache: Tensor, v_cache: Tensor, q: Tensor) -> None:
    if k_cache.dtype != q.dtype and k_cache.dtype not in check.FP8:
        check.dtype(k_cache, "k_cache", (q.dtype, *check.FP8))
    if v_cache.dtype != k_cache.dtype:
        check.dtype(v_cache, "v_cache", (k_cache.dtype,))
    for cache, name in ((k_cache, "k_cache"), (v_cache, "v_cache")):
        if cache.device != q.device:
            check.device(cache, name, q.device, "q")
        if cache.stride(3) != 1:
            check.last_contiguous(cache, name)
    check.no_grad(k_cache, v_cache)


def _check_table(
    cos_sin_cache: Tensor, batch_indices: Tensor, positions: Tensor, q: Tensor
) -> None:
    check_cos_sin(cos_sin_cache, "cos_sin_cache", q.shape[2], q.device)
    if q.is_cpu and not torch.compiler.is_compiling():
        rows = positions.masked_fill(batch_indices < 0, 0)
        metadata.in_range(rows, "positions", 0, cos_sin_cache.shape[0], "the rows of cos_sin_cache")


def _output(out: Tensor | None, q: Tensor, k_cache: Tensor) -> Tensor:
    if out is None:
        return torch.empty_like(q)
    check.is_tensor(out, "out")
    if out.dtype not in (q.dtype, k_cache.dtype):
        check.dtype(out, "out", dict.fromkeys((q.dtype, k_cache.dtype)))
    check.output(out, "out", q.shape, out.dtype, q, "q")
    return out


def _check_scales(scales: Scales, q: Tensor, k: Tensor, cache: Tensor, out: Tensor) -> None:
    """Scales of the right form, and none of what is not stored as FP8."""
    if scales is NO_SCALES:
        return
    inputs.scales(scales, q.shape[1], k.shape[1], q.device)
    for name, stored, where in (
        ("q", out, "out"),
        ("k", cache, "kv_cache"),
        ("v", cache, "kv_cache"),
    ):
        scale = getattr(scales, name)
        if stored.dtype not in check.FP8 and (isinstance(scale, Tensor) or scale != 1.0):
            check.fail(
                f"scales.{name} is given, but {where} is {check.dtype_name(stored.dtype)} and only "
                f"FP8 is scaled; leave it at 1.0, or give an FP8 {where}"
            )
