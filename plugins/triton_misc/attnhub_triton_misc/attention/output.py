"""From weighted sums to outputs: of one program, or of several that shared the keys of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from attnhub_triton_misc.attention.requests import factor, locate
from attnhub_triton_misc.launch import overlap

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
#: The lowest finite float32, the maximum of a row that saw keys whose scores are all -inf or NaN.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def finish(
    acc, total, largest, out, lse, v_scale, token, head, request, q_idx, variant, live,
    HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the rows of a tile: ``acc / total``, and the logarithm of ``total 2^largest``.

    ``token``, ``head`` and ``live`` are ``[rows, 1]``. A row that saw no key has ``largest`` -inf:
    its output is 0 and its LSE -inf, whatever a sink or a hook says. ``total`` is 0 where all that
    it saw were scores of -inf.
    """
    seen = largest != float("-inf")
    if HOOKS.sink is not None:
        sink = (
            tl.broadcast_to(HOOKS.sink(head, variant), head.shape).reshape(largest.shape) * LOG2_E
        )
        top = tl.maximum(largest, sink)
        rescale = tl.where(seen, tl.exp2(largest - top), 0.0)
        acc = acc * rescale[:, None]
        total = total * rescale + tl.exp2(sink - top)
        largest = top
    d = tl.arange(0, TILE.d_vo)[None, :]
    y = acc * v_scale
    if FORM.softmax:
        y = y / tl.where(total == 0.0, 1.0, total)[:, None]
    if HOOKS.output is not None:
        y = tl.broadcast_to(HOOKS.output(y, request, head, q_idx, d, variant), y.shape)
    y = tl.where(seen[:, None], y, 0.0)
    place = request.to(tl.int64) * out.batch + token * out.token + head.to(tl.int64) * out.head + d
    tl.store(out.data + place, y.to(out.data.dtype.element_ty), mask=live & (d < FORM.dim_vo))
    if lse.data is not None:
        log = (largest + tl.log2(total)) * LN_2
        if not FORM.softmax:
            log = tl.full(largest.shape, float("-inf"), tl.float32)
        log = tl.where(seen, log, float("-inf"))[:, None]
        place = request.to(tl.int64) * lse.batch + token * lse.token + head
        tl.store(lse.data + place, log, mask=live)


@triton.jit
def store_partial(
    acc, total, largest, partial, place, live, FORM: tl.constexpr, TILE: tl.constexpr
):
    """Write the rows of a share for :func:`merge`; ``place`` counts rows ``[rows, 1]``."""
    d = tl.arange(0, TILE.d_vo)[None, :]
    o = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(partial.out + place * FORM.dim_vo + d, o, mask=live & (d < FORM.dim_vo))
    # -inf says that no key was seen, LOWEST that all weights are 0.
    log = tl.maximum(largest + tl.log2(total), LOWEST, propagate_nan=tl.PropagateNan.ALL)
    log = tl.where(largest == float("-inf"), largest, log)[:, None]
    tl.store(partial.lse + place, log, mask=live)


@triton.jit(do_not_specialize=["tokens", "kv_tokens", "batch"])
def merge(
    partial, out, lse, requests, factors, variant, tokens, kv_tokens, batch,
    HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The states of all shares of a row's keys as one; a program takes heads of a group of a token.

    ``o = sum_s 2^(lse_s - max) o_s / sum_s 2^(lse_s - max)``. A share that saw no key has LSE -inf
    and counts for nothing: its output was never written.
    """
    overlap(PDL)
    index, kv_head = tl.program_id(0), tl.program_id(1)
    member = tl.program_id(2) * TILE.rows + tl.arange(0, TILE.rows)
    heads = tl.num_programs(1) * FORM.group
    head = (kv_head * FORM.group + member)[:, None]
    live = (member < FORM.group)[:, None]
    d = tl.arange(0, TILE.d_vo)[None, :]
    ROWS: tl.constexpr = TILE.rows  # a shape takes no field of a tuple
    D_VO: tl.constexpr = TILE.d_vo
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D_VO], tl.float32)
    for share in range(SHARES):
        row = (tl.full([], share, tl.int64) * tokens + index) * heads + head
        log = tl.load(partial.lse + row, mask=live, other=float("-inf"))
        held = live & (log != float("-inf")) & (d < FORM.dim_vo)
        o = tl.load(partial.out + row * FORM.dim_vo + d, mask=held, other=0.0)
        log = log.reshape([ROWS])
        top = tl.maximum(largest, log, propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(top == float("-inf"), 0.0, top)
        old, new = tl.exp2(largest - base), tl.exp2(log - base)
        new = tl.where(log == LOWEST, 0.0, new)
        acc = acc * old[:, None] + o * new[:, None]
        total = total * old + new
        largest = top
    request, q_idx, token = index * 0, head * 0, index.to(tl.int64)
    if HOOKS.output is not None or FORM.dense:
        request, row, begin, qo_len, kv_len, _ = locate(
            index, requests, tokens, kv_tokens, batch, FORM, 0
        )
        q_idx += row + kv_len - qo_len
        token = row.to(tl.int64) + begin
    v_scale = factor(factors.v, factors.v_stride, kv_head)
    finish(
        acc, total, largest, out, lse, v_scale, token, head, request, q_idx, variant, live,
        HOOKS, FORM, TILE,
    )  # fmt: skip
