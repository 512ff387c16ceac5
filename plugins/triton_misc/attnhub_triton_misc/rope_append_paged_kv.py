"""Rotary embedding, FP8 quantisation and the append to a paged cache, in one pass over memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnhub.plugin import Scales
from attnhub_triton_misc.append import Pages, Places, Table, locate
from attnhub_triton_misc.fp8 import cast, encode, has_casts
from attnhub_triton_misc.launch import launch, overlap
from attnhub_triton_misc.rotation import Heads, head_rows, load_angles, load_pairs, store_pairs
from attnhub_triton_misc.settings import heads_of_token
from attnhub_triton_misc.tuned import choose

#: Bits of the exponent of what the problem calls ``fp8``.
_EXPONENTS = {"none": 0, "float8_e4m3fn": 4, "float8_e5m2": 5}


class Scale(NamedTuple):
    """A number, or a tensor and how far its values for heads are apart; then no number."""

    value: Any
    stride: int | None


class Form(NamedTuple):
    """What a problem fixes; compiled in.

    A tail is what lies behind the turned elements of a head; that of queries is 0 where it need not
    be copied. ``fp8`` is how many bits the exponent of the FP8 that is stored has, 0 where it is
    none.
    """

    page_size: int
    half: int
    q_tail: int
    k_tail: int
    v_dim: int
    interleaved: bool
    heads: int
    q_fp8: int
    fp8: int
    casts: bool


@triton.jit
def _rope_append(
    q, q_out, q_scale,
    k, k_cache, k_scale,
    v, v_cache, v_scale,
    cos_sin, cos_sin_row,
    table, places,
    FORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``(a cos - b sin, b cos + a sin)`` of each pair of q and k, by row ``position`` of a table.

    Then ``cache[page[token], slot[token]] = (k, v)[token]``, as FP8 divided by a scale. A program
    goes through blocks of heads of one token: those of q, then of k, then of v.
    """
    overlap(PDL)
    token = tl.program_id(0).to(tl.int64)
    turns = tl.load(places.batch_indices + token) >= 0
    position = tl.load(places.positions + token)
    cos, sin = load_angles(cos_sin, cos_sin_row, tl.where(turns, position, 0), FORM.half)
    q_blocks = tl.cdiv(q.heads, FORM.heads)
    kv_blocks = tl.cdiv(k.heads, FORM.heads)
    for block in range(tl.program_id(1), q_blocks + 2 * kv_blocks, tl.num_programs(1)):
        if block < q_blocks:
            _queries(q, q_out, q_scale, token, block, cos, sin, turns, FORM)
        elif block < q_blocks + kv_blocks:
            of_k = block - q_blocks
            _keys(k, k_cache, k_scale, token, of_k, cos, sin, table, places, FORM)
        else:
            of_v = block - q_blocks - kv_blocks
            _values(v, v_cache, v_scale, token, of_v, table, places, FORM)


@triton.jit
def _queries(q, q_out, q_scale, token, block, cos, sin, turns, FORM: tl.constexpr):
    head = block * FORM.heads + tl.arange(0, FORM.heads)[:, None]
    live = head < q.heads
    source, target = head_rows(q, token, head), head_rows(q_out, token, head)
    a, b = load_pairs(source, live, FORM.half, FORM.interleaved)
    # Padding has no angle; its queries pass as they are.
    a, b = tl.where(turns, a * cos - b * sin, a), tl.where(turns, b * cos + a * sin, b)
    inverse = _inverse(q_scale, head, live)
    _store_head(source, live, target, live, a, b, inverse, FORM.q_tail, FORM.q_fp8, FORM)


@triton.jit
def _keys(k, k_cache, k_scale, token, block, cos, sin, table, places, FORM: tl.constexpr):
    head = block * FORM.heads + tl.arange(0, FORM.heads)[:, None]
    live = head < k.heads
    source = head_rows(k, token, head)
    a, b = load_pairs(source, live, FORM.half, FORM.interleaved)
    target, found = _place(k_cache, token, head, table, places, FORM.page_size)
    a, b = a * cos - b * sin, b * cos + a * sin
    inverse = _inverse(k_scale, head, live)
    _store_head(source, live, target, live & found, a, b, inverse, FORM.k_tail, FORM.fp8, FORM)


@triton.jit
def _store_head(
    source, live, target, writable, a, b, inverse,
    TAIL: tl.constexpr, FP8: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Turned pairs, and the tail behind them as it is in ``source``."""
    a, b = (
        _stored(a, inverse, target, FP8, FORM.casts),
        _stored(b, inverse, target, FP8, FORM.casts),
    )
    store_pairs(target, writable, a, b, FORM.half, FORM.interleaved)
    if TAIL > 0:
        rest = _load(source + 2 * FORM.half, live, TAIL)
        rest = _stored(rest, inverse, target, FP8, FORM.casts)
        _store(target + 2 * FORM.half, writable, rest, TAIL)


@triton.jit
def _values(v, v_cache, v_scale, token, block, table, places, FORM: tl.constexpr):
    head = block * FORM.heads + tl.arange(0, FORM.heads)[:, None]
    live = head < v.heads
    inverse = _inverse(v_scale, head, live)
    x = _load(head_rows(v, token, head), live, FORM.v_dim)
    target, found = _place(v_cache, token, head, table, places, FORM.page_size)
    _store(target, live & found, _stored(x, inverse, target, FORM.fp8, FORM.casts), FORM.v_dim)


@triton.jit
def _place(cache, token, head, table, places, PAGE_SIZE: tl.constexpr):
    """Where heads of a token go in a cache, and whether the token has a place there at all.

    That takes three loads one after another, so what is to be stored is asked for before.
    """
    # NOTE: without it, ptxas moves the loads of what is stored behind these, to save registers.
    tl.debug_barrier()
    page, slot, found = locate(token, table, places, PAGE_SIZE)
    row = cache.pointer + page * cache.page_stride + slot * cache.slot_stride
    return row + head.to(tl.int64) * cache.head_stride, found


@triton.jit
def _load(row, live, DIM: tl.constexpr):
    column = tl.arange(0, triton.next_power_of_2(DIM))[None, :]
    return tl.load(row + column, mask=live & (column < DIM), other=0.0)


@triton.jit
def _store(row, live, x, DIM: tl.constexpr):
    column = tl.arange(0, triton.next_power_of_2(DIM))[None, :]
    tl.store(row + column, x, mask=live & (column < DIM))


@triton.jit
def _inverse(scale, head, live):
    """``1 / scale`` of each head ``[heads, 1]``, or of all."""
    value = scale.value
    if scale.stride is not None:
        value = tl.load(value + head * scale.stride, mask=live, other=1.0)
    return tl.div_rn(1.0, value)


@triton.jit
def _stored(x, inverse, row, FP8: tl.constexpr, CASTS: tl.constexpr):
    """What ``x`` is in memory: ``x / scale`` as a code of FP8, or itself in the dtype there.

    Divided once for each head: one division an element would take longer than memory does.
    """
    if FP8 == 0:
        y = x.to(row.dtype.element_ty)
    else:
        y = x.to(tl.float32) * inverse
        y = cast(y, FP8 == 5) if CASTS else encode(y, FP8 == 5)
    return y


class _Plan:
    def __init__(self, problem: Any) -> None:
        p = problem
        self._is_nhd = p.layout == "NHD"
        self._stores_fp8, self._q_is_fp8 = p.fp8 != "none", p.fp8_q
        fp8 = _EXPONENTS[p.fp8]
        counts = p.num_qo_heads, p.num_kv_heads, p.num_kv_heads
        dim = max(p.head_dim_qk, p.head_dim_vo)
        tile = choose(p, heads_of_token(counts, dim, p.extent.tokens))
        self._programs, self._warps = tile.programs, tile.warps
        tail = p.head_dim_qk - p.rotary_dim
        self._form = Form(
            page_size=p.page_size,
            half=p.rotary_dim // 2,
            q_tail=tail,
            k_tail=tail,
            v_dim=p.head_dim_vo,
            interleaved=p.interleaved,
            heads=tile.heads,
            q_fp8=fp8 if p.fp8_q else 0,
            fp8=fp8,
            casts=has_casts(p.device),
        )
        self._in_place = self._form._replace(q_tail=0)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin_cache: Tensor,
        q_out: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        scales: Scales,
        *where: Tensor,
    ) -> None:
        form = self._in_place if q_out is q else self._form
        if self._stores_fp8:
            k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
        if self._q_is_fp8:
            q_out = q_out.view(torch.uint8)
        indptr, indices, batch_indices, positions = where
        table = Table(indptr, indices, indptr.shape[0] - 1, indices.shape[0], k_cache.shape[0])
        launch(
            _rope_append,
            (q.shape[0], self._programs),
            q.device,
            Heads.of(q), Heads.of(q_out), _scale(scales.q),
            Heads.of(k), self._pages(k_cache), _scale(scales.k),
            Heads.of(v), self._pages(v_cache), _scale(scales.v),
            cos_sin_cache, cos_sin_cache.stride(0),
            _readable(table), Places(batch_indices, positions, q.shape[0]),
            FORM=form,
            num_warps=self._warps,
        )  # fmt: skip

    def _pages(self, cache: Tensor) -> Pages:
        page, first, second, _ = cache.stride()
        return Pages(cache, page, *((first, second) if self._is_nhd else (second, first)))


def _scale(value: Tensor | float) -> Scale:
    if isinstance(value, Tensor):
        return Scale(value, value.stride(0) if value.numel() > 1 else 0)
    return Scale(float(value), None)


def _readable(table: Table) -> Table:
    """The table; for one without requests or pages another, in which nothing has a place either."""
    if 0 not in table[2:]:
        return table
    nothing = table.indptr.new_zeros(2)
    return Table(nothing, nothing, 1, 1, 0)


class _RopeAppendPagedKV:
    def plan(self, problem: Any) -> _Plan:
        return _Plan(problem)


rope_append_paged_kv = _RopeAppendPagedKV()
