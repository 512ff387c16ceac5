"""Online softmax over blocks of keys, for a tile of rows of one request and one KV head.

A row is a query and a head of its GQA group, so that the group shares what is read of K and V. A
tile finds its request on the device: that of request b begins at ``qo_indptr[b] * group // rows +
b``, which leaves room for a partly filled tile per request. Rows that no request owns belong to one
more, without keys.

Sources: Dao, "FlashAttention-2" (2023); tiles are numbered as in vLLM's attention in Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnhub_triton_misc.attention.output import LOG2_E, LOWEST, finish, store_partial
from attnhub_triton_misc.attention.requests import factor, locate
from attnhub_triton_misc.fp8 import decode
from attnhub_triton_misc.launch import overlap


@triton.jit
def slots(k, v, requests, request, first, kv, valid, FORM: tl.constexpr):
    """Where rows ``kv`` of a request's K and V begin."""
    PAGE: tl.constexpr = FORM.page
    if PAGE:
        page = tl.load(requests.indices + first + kv // PAGE, mask=valid, other=0).to(tl.int64)
        slot = (kv % PAGE).to(tl.int64)
        k_row, v_row = page * k.page + slot * k.slot, page * v.page + slot * v.slot
    elif FORM.dense:
        row, page = kv.to(tl.int64), request.to(tl.int64)
        k_row, v_row = page * k.page + row * k.slot, page * v.page + row * v.slot
    else:
        row = (first + kv).to(tl.int64)
        k_row, v_row = row * k.slot, row * v.slot
    return k_row, v_row


@triton.jit
def operand(block, dtype: tl.constexpr, EXPONENT: tl.constexpr):
    """A block of K or V as an operand of a product with something of ``dtype``."""
    if EXPONENT:
        block = decode(block, EXPONENT == 5).to(dtype)
    return block


@triton.jit
def visible(kv, tile, requests, variant, HOOKS: tl.constexpr, FORM: tl.constexpr):
    """Which rows see which keys, ``[rows, keys]``; rows beyond the request's see none."""
    request, _, _, kv_len, head, query, q_idx, live = tile
    keep = live & (kv < kv_len)
    if FORM.right >= 0:
        keep = keep & (kv <= q_idx + FORM.right)
    if FORM.left >= 0:
        keep = keep & (kv >= q_idx - FORM.left)
    if requests.mask is not None:
        place = query.to(tl.int64) * kv_len + kv
        if FORM.dense:
            begin = request.to(tl.int64) * requests.mask_offsets
        else:
            begin = tl.load(requests.mask_offsets + request)
        if FORM.packed_mask:
            bits = tl.load(requests.mask + begin + place // 8, mask=keep, other=0)
            keep = keep & ((bits >> (place % 8).to(tl.uint8) & 1) != 0)
        else:
            keep = keep & (tl.load(requests.mask + begin + place, mask=keep, other=0) != 0)
    if HOOKS.mask is not None:
        keep = keep & HOOKS.mask(request, head, q_idx, kv, variant)
    return keep


@triton.jit
def step(
    at, state, q_tile, k, v, tile, scale, k_scale, requests, variant,
    MASKED: tl.constexpr, HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Take in the keys ``at .. at + TILE.keys``; ``MASKED`` unless every row sees all of them.

    ``largest`` is -inf only until a row sees a key: from then on it is ``LOWEST`` or more, also
    where a score is -inf or NaN, so that what was seen needs no state of its own.
    """
    largest, total, acc = state
    request, first, kv_head, kv_len, head, _, q_idx, _ = tile
    kv = at + tl.arange(0, TILE.keys)
    inside = (kv < kv_len) if MASKED else (kv >= 0)
    k_row, v_row = slots(k, v, requests, request, first, kv, inside, FORM)
    d = tl.arange(0, TILE.d_qk)[:, None]
    k_block = tl.load(
        k.data + kv_head.to(tl.int64) * k.head + k_row[None, :] + d,
        mask=inside[None, :] & (d < FORM.dim_qk),
        other=0,
    )
    d_vo = tl.arange(0, TILE.d_vo)[None, :]
    v_block = tl.load(
        v.data + kv_head.to(tl.int64) * v.head + v_row[:, None] + d_vo,
        mask=inside[:, None] & (d_vo < FORM.dim_vo),
        other=0,
    )
    kv = kv[None, :]
    keys = operand(k_block, q_tile.dtype, FORM.exponent)
    if HOOKS.key is not None:
        changed = HOOKS.key(keys.to(tl.float32) * k_scale, request, kv_head, kv, d, variant)
        keys = tl.where(inside[None, :] & (d < FORM.dim_qk), changed, 0.0).to(q_tile.dtype)
    scores = tl.dot(q_tile, keys, input_precision="ieee") * scale
    if HOOKS.score is not None:
        scores = HOOKS.score(scores, request, head, q_idx, kv, variant)
        scores = tl.broadcast_to(scores, q_idx.shape[0], TILE.keys)
    if FORM.softmax:
        scores = scores * LOG2_E
    # Maxima drop NaN here as on the GPU: it reaches the results through the sums.
    if MASKED:
        keep = visible(kv, tile, requests, variant, HOOKS, FORM)
        seen = tl.where(keep, tl.maximum(scores, LOWEST), float("-inf"))
        top = tl.maximum(largest, tl.max(seen, axis=1))
        scores = tl.where(keep, scores, float("-inf") if FORM.softmax else 0.0)
    else:
        top = tl.maximum(largest, tl.maximum(tl.max(scores, axis=1), LOWEST))
    if FORM.softmax:
        base = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.exp2(scores - base[:, None])
        rescale = tl.exp2(largest - base)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
    else:
        weights = scores
    values = operand(v_block, q_tile.dtype, FORM.exponent)
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    return top, total, acc


@triton.jit
def key_range(
    row, qo_len, kv_len, share, requests,
    HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Keys that some row of a tile may see, in whole blocks, as far as they are this share's.

    From the first to the second number every row sees all of them, and so no mask is needed.
    """
    lowest = row // FORM.group + kv_len - qo_len
    highest = tl.minimum(row + TILE.rows, qo_len * FORM.group) - 1
    highest = highest // FORM.group + kv_len - qo_len
    start = tl.full([], 0, tl.int32)
    stop = kv_len
    if FORM.left >= 0:
        start += tl.maximum(lowest - FORM.left, 0) // TILE.keys * TILE.keys
    if FORM.right >= 0:
        stop = tl.minimum(stop, highest + FORM.right + 1)
    if SHARES > 1:
        blocks = tl.cdiv(tl.maximum(stop - start, 0), TILE.keys)
        size = tl.cdiv(blocks, SHARES) * TILE.keys
        start += share * size
        stop = tl.minimum(stop, start + size)
    plain = start
    if FORM.left < 0 and HOOKS.mask is None and requests.mask is None:
        whole = stop
        if FORM.right >= 0:
            whole = tl.minimum(stop, lowest + FORM.right + 1)
        plain += tl.maximum(whole - start, 0) // TILE.keys * TILE.keys
    return start, plain, stop


@triton.jit
def queries(
    q, factors, variant, request, token, head, q_idx, live, k_scale,
    HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The queries of a tile, and what their products with keys are multiplied by.

    What a hook sees of Q or K it has to see with its scale.
    """
    d = tl.arange(0, TILE.d_qk)[None, :]
    in_head = d < FORM.dim_qk
    place = request.to(tl.int64) * q.batch + token * q.token + head.to(tl.int64) * q.head + d
    x = tl.load(q.data + place, mask=live & in_head, other=0.0)
    scale = factors.score
    q_scale = factor(factors.q, factors.q_stride, tl.where(live, head, 0))
    if HOOKS.query is None:
        scale = scale * q_scale
    else:
        changed = HOOKS.query(x.to(tl.float32) * q_scale, request, head, q_idx, d, variant)
        x = tl.where(live & in_head, changed, 0.0).to(x.dtype)
    if HOOKS.key is None:
        scale = scale * k_scale
    return x, scale


@triton.jit(do_not_specialize=["tokens", "kv_tokens", "batch"])
def attend(
    q, k, v, out, lse, partial, requests, factors, variant, tokens, kv_tokens, batch,
    HOOKS: tl.constexpr, FORM: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``softmax(mask(score(scale Q K^T))) V`` for a tile; a program takes one share of its keys.

    With more shares than one the results are partial, for ``output.merge``.
    """
    overlap(PDL)
    ROWS: tl.constexpr = TILE.rows  # a shape takes no field of a tuple
    D_VO: tl.constexpr = TILE.d_vo
    index = tl.num_programs(0) - 1 - tl.program_id(0)  # of causal rows, the longest first
    kv_head, share = tl.program_id(1), tl.program_id(2)
    request, row, begin, qo_len, kv_len, first = locate(
        index, requests, tokens, kv_tokens, batch, FORM, ROWS
    )
    if row >= qo_len * FORM.group:
        return

    rows = row + tl.arange(0, ROWS)
    live = (rows < qo_len * FORM.group)[:, None]
    query = (rows // FORM.group)[:, None]
    head = (kv_head * FORM.group + rows % FORM.group)[:, None]
    q_idx = query + kv_len - qo_len
    token = query.to(tl.int64) + begin
    k_scale = factor(factors.k, factors.k_stride, kv_head)
    q_tile, scale = queries(
        q, factors, variant, request, token, head, q_idx, live, k_scale, HOOKS, FORM, TILE
    )
    tile = (request, first, kv_head, kv_len, head, query, q_idx, live)
    state = (
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, D_VO], tl.float32),
    )
    start, plain, stop = key_range(row, qo_len, kv_len, share, requests, HOOKS, FORM, TILE, SHARES)
    for at in tl.range(start, plain, TILE.keys):
        state = step(
            at, state, q_tile, k, v, tile, scale, k_scale, requests, variant,
            False, HOOKS, FORM, TILE,
        )  # fmt: skip
    for at in tl.range(plain, stop, TILE.keys):
        state = step(
            at, state, q_tile, k, v, tile, scale, k_scale, requests, variant,
            True, HOOKS, FORM, TILE,
        )  # fmt: skip
    largest, total, acc = state

    if SHARES == 1:
        v_scale = factor(factors.v, factors.v_stride, kv_head)
        finish(
            acc, total, largest, out, lse, v_scale, token, head, request, q_idx, variant, live,
            HOOKS, FORM, TILE,
        )  # fmt: skip
    else:
        place = share.to(tl.int64) * tokens + token
        if FORM.dense:
            place += request.to(tl.int64) * qo_len
        place = place * (tl.num_programs(1) * FORM.group) + head
        store_partial(acc, total, largest, partial, place, live, FORM, TILE)
