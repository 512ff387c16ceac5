"""What plans of AttnHub's own ops look like; ``docs/plan_contract.md`` is made from this table."""

from __future__ import annotations

from attnhub.plugin import Contract, OneOf

_ATTENTION_TAIL = "mask: Tensor[...] | None, scales: Scales, params: Mapping[str, Tensor | float]"
_FILTERS = (
    "top_k: Tensor[batch] | int | None, top_p: Tensor[batch] | float | None, "
    "min_p: Tensor[batch] | float | None, joint: bool, out: Out[batch]"
)
_MERGE = (
    "o_a: Tensor[tokens, heads, dim], lse_a: Tensor[tokens, heads], "
    "o_b: Tensor[tokens, heads, dim], lse_b: Tensor[tokens, heads], "
    "out: Out[tokens, heads, dim], lse: Out[tokens, heads]"
)
_TABLE = "indptr: Tensor[batch + 1], indices: Tensor[pages], batch_indices: Tensor[tokens], "
_ROTATED = "q_out: Out[tokens, qo_heads, dim], k_out: Out[tokens, kv_heads, dim]"
_QKP = (
    "q: Tensor[tokens, qo_heads, dim], k: Tensor[tokens, kv_heads, dim], positions: Tensor[tokens]"
)
_SAME = "the same memory with the same strides"
_IN_PLACE = f"q_out and k_out may be q and k themselves, {_SAME}"
_OUT_IS_X = f"out may be x itself, {_SAME}"
_OUT_IS_PROBS = f"out may be probs itself, {_SAME}"
_GATED = Contract(
    run="x: Tensor[..., 2 * hidden], out: Out[..., hidden], scale: Tensor[...] | None",
    note="gate, then up; scale is [] where out is FP8, and takes the product over it, else None",
)

DENSE = Contract(
    when={"kv": OneOf("dense")},
    run=(
        "q: Tensor[batch, qo_len, qo_heads, dim_qk], k: Tensor[batch, kv_len, kv_heads, dim_qk], "
        "v: Tensor[batch, kv_len, kv_heads, dim_vo], out: Out[batch, qo_len, qo_heads, dim_vo], "
        f"lse: Out[batch, qo_len, qo_heads] | None, {_ATTENTION_TAIL}"
    ),
    note="mask is bool [qo_len, kv_len] or [batch, qo_len, kv_len]",
)
PLANNED = Contract(
    run=(
        "q: Tensor[tokens, qo_heads, dim_qk], k: Tensor[...], v: Tensor[...], "
        "out: Out[tokens, qo_heads, dim_vo], lse: Out[tokens, qo_heads] | None, "
        f"{_ATTENTION_TAIL}"
    ),
    update="AttentionBatch",
    note=(
        "k and v are [pages, page, kv_heads, dim] (NHD) or [pages, kv_heads, page, dim] (HND) "
        "where K/V are paged, else [tokens, kv_heads, dim] or [kv_heads, tokens, dim]; mask is "
        "None, for the batch holds it"
    ),
)
MLA = Contract(
    run=(
        "q_nope: Tensor[tokens, heads, dim_ckv], q_pe: Tensor[tokens, heads, dim_kpe], "
        "ckv: Tensor[pages, page, dim_ckv], kpe: Tensor[pages, page, dim_kpe], "
        "out: Out[tokens, heads, dim_ckv], lse: Out[tokens, heads] | None, scale: float, "
        "scales: MLAScales"
    ),
    update="AttentionBatch",
)

#: op -> its contracts; the first that concerns a problem counts
CONTRACTS: dict[str, tuple[Contract, ...]] = {
    "attention": (DENSE, PLANNED),
    "mla": (MLA,),
    "activation.silu_and_mul": (_GATED,),
    "activation.gelu_and_mul": (_GATED,),
    "activation.gelu_tanh_and_mul": (_GATED,),
    "cascade.merge_state": (
        Contract(
            run=_MERGE,
            note=f"out and lse may be o_a and lse_a, or o_b and lse_b, themselves, {_SAME}",
        ),
    ),
    "cascade.merge_state_in_place": (
        Contract(
            run=(
                "o: InOut[tokens, heads, dim], lse: InOut[tokens, heads], "
                "o_b: Tensor[tokens, heads, dim], lse_b: Tensor[tokens, heads], "
                "mask: Tensor[tokens] | None"
            )
        ),
    ),
    "cascade.merge_states": (
        Contract(
            run=(
                "o: Tensor[tokens, states, heads, dim], lse: Tensor[tokens, states, heads], "
                "out: Out[tokens, heads, dim], out_lse: Out[tokens, heads]"
            )
        ),
    ),
    "gemm.segment_gemm": (
        Contract(
            run=(
                "x: Tensor[rows, k], weights: Tensor[num_weights, k, n], "
                "seg_indptr: Tensor[segments + 1], weight_indices: Tensor[segments] | None, "
                "out: Out[rows, n], transposed: bool"
            ),
            note="transposed weights are [num_weights, n, k]",
        ),
    ),
    "norm.rmsnorm": (
        Contract(
            run=(
                "x: Tensor[..., hidden], weight: Tensor[hidden], out: Out[..., hidden], "
                "eps: float, weight_bias: float"
            ),
            note=_OUT_IS_X,
        ),
    ),
    "norm.fused_add_rmsnorm": (
        Contract(
            run=(
                "x: InOut[..., hidden], residual: InOut[..., hidden], weight: Tensor[hidden], "
                "eps: float, weight_bias: float"
            ),
            note="x takes the normalised sum, residual the sum",
        ),
    ),
    "norm.layernorm": (
        Contract(
            run=(
                "x: Tensor[..., hidden], weight: Tensor[hidden], bias: Tensor[hidden] | None, "
                "out: Out[..., hidden], eps: float"
            ),
            note=_OUT_IS_X,
        ),
    ),
    "sampling.sample": (
        Contract(
            run=(
                "probs: Tensor[rows, vocab], indices: Tensor[batch] | None, seed: Tensor[batch], "
                f"offset: Tensor[batch], {_FILTERS}"
            ),
            note="indices names the row of each request; None is row i for request i",
        ),
    ),
    "sampling.sample_logits": (
        Contract(
            run=(
                "logits: Tensor[rows, vocab], indices: Tensor[batch] | None, seed: Tensor[batch], "
                f"offset: Tensor[batch], temperature: Tensor[batch] | float | None, {_FILTERS}"
            )
        ),
    ),
    "sampling.softmax": (
        Contract(
            run=(
                "logits: Tensor[batch, vocab], temperature: Tensor[batch] | float | None, "
                "out: Out[batch, vocab]"
            ),
            note=f"float32 logits: out may be logits itself, {_SAME}",
        ),
    ),
    "sampling.top_k_renorm": (
        Contract(
            run="probs: Tensor[batch, vocab], top_k: Tensor[batch] | int, out: Out[batch, vocab]",
            note=_OUT_IS_PROBS,
        ),
    ),
    "sampling.top_p_renorm": (
        Contract(
            run="probs: Tensor[batch, vocab], top_p: Tensor[batch] | float, out: Out[batch, vocab]",
            note=_OUT_IS_PROBS,
        ),
    ),
    "sampling.top_k_mask_logits": (
        Contract(
            run="logits: Tensor[batch, vocab], top_k: Tensor[batch] | int, out: Out[batch, vocab]",
            note=f"out may be logits itself, {_SAME}",
        ),
    ),
    "sampling.top_k": (
        Contract(run="scores: Tensor[batch, vocab], values: Out[batch, k], indices: Out[batch, k]"),
    ),
    "sampling.chain_speculative": (
        Contract(
            run=(
                "draft_probs: Tensor[batch, n, vocab], draft_token_ids: Tensor[batch, n], "
                "target_probs: Tensor[batch, n + 1, vocab], seed: Tensor[batch], "
                "offset: Tensor[batch], tokens: Out[batch, n + 1], accepted: Out[batch], "
                "emitted: Out[batch]"
            )
        ),
    ),
    "sampling.tree_speculative": (
        Contract(
            run=(
                "draft_token_ids: Tensor[batch, nodes], parents: Tensor[batch, nodes], "
                "target_probs: Tensor[batch, nodes + 1, vocab], "
                "draft_probs: Tensor[batch, nodes, vocab] | None, seed: Tensor[batch], "
                "offset: Tensor[batch], path: Out[batch, nodes], num_accepted: Out[batch], "
                "bonus: Out[batch]"
            )
        ),
    ),
    "quantization.packbits": (
        Contract(run="x: Tensor[n], out: Out[ceil(n / 8)], bitorder: Literal['little', 'big']"),
    ),
    "quantization.unpackbits": (
        Contract(run="packed: Tensor[size], out: Out[n], bitorder: Literal['little', 'big']"),
    ),
    "quantization.segment_packbits": (
        Contract(
            run=(
                "x: Tensor[n], indptr: Tensor[segments + 1], out: Out[total_bytes], "
                "byte_indptr: Out[segments + 1], bitorder: Literal['little', 'big']"
            )
        ),
    ),
    "quantization.quantize_fp8": (
        Contract(
            run=(
                "x: Tensor[...], scale: Tensor[...] | None, out: Out[...], "
                "scale_out: Out[...] | None, axis: int | None"
            ),
            note="scales are [] or [x.shape[axis]]; one of scale and scale_out is None",
        ),
    ),
    "quantization.dequantize_fp8": (
        Contract(
            run="stored: Tensor[...], scale: Tensor[...], out: Out[...], axis: int | None",
            note="scale is [] or [stored.shape[axis]]",
        ),
    ),
    "rope.apply_rope": (
        Contract(run=f"{_QKP}, {_ROTATED}", note=f"the problem holds the rotation; {_IN_PLACE}"),
    ),
    "rope.apply_rope_cos_sin": (
        Contract(
            run=f"{_QKP}, cache: Tensor[max_position, rotary_dim], {_ROTATED}, interleaved: bool",
            note=_IN_PLACE,
        ),
    ),
    "page.append_paged_kv": (
        Contract(
            run=(
                "k_new: Tensor[tokens, kv_heads, dim_k], v_new: Tensor[tokens, kv_heads, dim_v], "
                "k_cache: InOut[pages, page, kv_heads, dim_k], "
                "v_cache: InOut[pages, page, kv_heads, dim_v], "
                f"{_TABLE}positions: Tensor[tokens], layout: Literal['NHD', 'HND']"
            ),
            note="HND caches are [pages, kv_heads, page, dim]",
        ),
    ),
    "page.rope_append_paged_kv": (
        Contract(
            run=(
                "q: Tensor[tokens, qo_heads, dim_qk], k: Tensor[tokens, kv_heads, dim_qk], "
                "v: Tensor[tokens, kv_heads, dim_vo], "
                "cos_sin_cache: Tensor[max_position, rotary_dim], "
                "q_out: Out[tokens, qo_heads, dim_qk], "
                "k_cache: InOut[pages, page, kv_heads, dim_qk], "
                "v_cache: InOut[pages, page, kv_heads, dim_vo], "
                f"scales: Scales, {_TABLE}positions: Tensor[tokens]"
            ),
            note=(
                "the problem holds the pairing and the layout: HND caches are "
                f"[pages, kv_heads, page, dim]; q_out may be q itself, {_SAME}"
            ),
        ),
    ),
    "page.append_paged_mla": (
        Contract(
            run=(
                "ckv: Tensor[tokens, dim_ckv], kpe: Tensor[tokens, dim_kpe], "
                "ckv_cache: InOut[pages, page, dim_ckv], kpe_cache: InOut[pages, page, dim_kpe], "
                f"{_TABLE}positions: Tensor[tokens]"
            )
        ),
    ),
    "page.get_batch_indices_positions": (
        Contract(
            run=(
                "append_indptr: Tensor[batch + 1], seq_lens: Tensor[batch], "
                "batch_indices: Out[tokens], positions: Out[tokens]"
            )
        ),
    ),
    "page.get_seq_lens": (
        Contract(
            run=(
                "indptr: Tensor[batch + 1], last_page_len: Tensor[batch], out: Out[batch], "
                "page_size: int"
            )
        ),
    ),
}
