"""A small problem of the oracle, run through the public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnhub import (
    BatchAttention,
    BlockSparse,
    BlockSparseKV,
    DTypes,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Rope,
    Scales,
    VariableBlockKV,
    VariableBlocks,
    Variant,
)
from tests.oracle import problems as oracle
from tests.oracle.mods import KEY_MODS, MASK_MODS, OUTPUT_MODS, QUERY_MODS, SCORE_MODS


def _elementwise(mod: Callable[..., Any]) -> Callable[..., Any]:
    """AttnHub's elementwise mods also get the channel; the oracle's do not ask for it."""
    return lambda x, b, h, idx, d: mod(x, b, h, idx)


def variant_of(problem: oracle.SmallProblem) -> Variant:
    """The Variant that says the same as the problem's features."""
    f = problem.features
    mods: dict[str, Any] = {}
    if f.score_mod:
        mods["score_mod"] = SCORE_MODS[f.score_mod]
    if f.mask_mod:
        mods["mask_mod"] = MASK_MODS[f.mask_mod]
    for name, table in (
        ("query_mod", QUERY_MODS),
        ("key_mod", KEY_MODS),
        ("output_mod", OUTPUT_MODS),
    ):
        if getattr(f, name):
            mods[name] = _elementwise(table[getattr(f, name)])
    rope = None
    if f.rope is not None:
        rope = Rope(
            theta=f.rope.theta, rotary_dim=f.rope.rotary_dim, interleaved=f.rope.interleaved
        )
    return Variant(
        causal=f.causal,
        window=f.window,
        soft_cap=f.soft_cap,
        alibi=f.alibi,
        sinks=f.sinks,
        rope=rope,
        scale=f.scale,
        softmax=f.softmax,
        **mods,
    )


def layout_of(problem: oracle.SmallProblem) -> Any:
    """The constructor's ``kv`` for the problem's storage."""
    s = problem.storage
    return {
        "paged": lambda: Paged(s.page_size, s.layout),
        "ragged": lambda: Ragged(s.layout),
        "blocks": lambda: BlockSparse(*s.block, layout=s.layout),
        "variable_blocks": lambda: VariableBlocks(s.layout),
    }[s.kind]()


def tensors_of(problem: oracle.SmallProblem) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """``q, qo_indptr, kv metadata, kv`` as plan() and run() take them."""
    kind = problem.storage.kind
    if kind == "paged":
        t = oracle.paged_tensors(problem)
        return t.q, t.qo_indptr, PagedKV(t.indptr, t.indices, t.last_page_len), t.cache
    if kind == "ragged":
        r = oracle.ragged_tensors(problem)
        return r.q, r.qo_indptr, RaggedKV(r.kv_indptr), (r.k, r.v)
    if kind == "blocks":
        b = oracle.block_tensors(problem)
        meta = BlockSparseKV(b.ragged.kv_indptr, b.block_indptr, b.block_indices)
        return b.ragged.q, b.ragged.qo_indptr, meta, (b.ragged.k, b.ragged.v)
    v = oracle.variable_block_tensors(problem)
    variable = VariableBlockKV(v.row_sizes, v.col_sizes, v.block_map)
    return v.ragged.q, v.ragged.qo_indptr, variable, (v.ragged.k, v.ragged.v)


def run(problem: oracle.SmallProblem, backend: str, packed: bool) -> Any:
    """Output and LSE (None without softmax) by one backend, into poisoned memory."""
    p = oracle.parameter_tensors(problem)
    variant = variant_of(problem)
    attn = BatchAttention(
        problem.num_qo_heads,
        problem.num_kv_heads,
        (problem.head_dim_qk, problem.head_dim_vo),
        DTypes(problem.q_dtype, problem.kv_dtype, "float32"),
        layout_of(problem),
        variant=variant,
        device="cpu",
        backend=backend,
    )
    q, qo_indptr, metadata, kv = tensors_of(problem)
    rope = variant.rope is not None
    params = {
        name: value
        for name, value in (("alibi_slopes", p.alibi_slopes), ("sinks", p.sinks))
        if value is not None
    }
    attn.plan(
        qo_indptr,
        metadata,
        mask=p.packed_mask if packed else p.flat_mask,
        q_offset=p.q_offset if rope else None,
        k_offset=p.k_offset if rope else None,
        params=params,
    )
    out = torch.full((q.shape[0], problem.num_qo_heads, problem.head_dim_vo), float("nan"))
    scales = Scales(*(_scale(s) for s in (p.q_scale, p.k_scale, p.v_scale)))
    result = attn.run(q, kv, scales=scales, out=out, return_lse=variant.softmax)
    return result if variant.softmax else (result, None)


def _scale(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else float(value)
