"""What this plugin offers: data only, so that finding it costs nothing."""

from __future__ import annotations

from typing import Any

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Constraint,
    Efficiency,
    Estimate,
    OneOf,
    Problem,
    Range,
    Rule,
    Subset,
    hookimpl,
)

_FLOATS = OneOf("float16", "bfloat16", "float32")
_HALVES = ("float16", "bfloat16")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_PROBE = "attnhub_triton_misc.probe:triton_runs"
_SM = Range(75, None)
_MEASURED_SM = 90


@hookimpl
def attnhub_backends() -> list[Backend]:
    """Every backend, imported when it is first chosen."""
    rows: dict[str, Constraint] = {
        "dtype": _FLOATS,
        "hidden": AnyValue(),
        "contiguous": AnyValue(),
    }
    return [
        _attention(),
        _backend("norm.rmsnorm", **rows),
        _backend("norm.fused_add_rmsnorm", **rows),
        _backend("norm.layernorm", **rows, bias=AnyValue()),
        _backend("activation.silu_and_mul", **rows, out_dtype=AnyValue()),
        _backend("activation.gelu_and_mul", **rows, out_dtype=AnyValue()),
        _backend("activation.gelu_tanh_and_mul", **rows, out_dtype=AnyValue()),
        *_cascade(),
        *_page(),
        *_quantization(),
        *_rope(),
    ]


def _cascade() -> list[Backend]:
    states: dict[str, Constraint] = {
        "dtype": _FLOATS,
        "num_heads": AnyValue(),
        "head_dim": AnyValue(),
        "contiguous": AnyValue(),
    }
    return [
        _backend("cascade.merge_state", **states),
        _backend("cascade.merge_state_in_place", **states, mask=AnyValue()),
        _backend("cascade.merge_states", **states, num_states=AnyValue()),
    ]


def _rope() -> list[Backend]:
    heads: dict[str, Constraint] = {
        "dtype": _FLOATS,
        "num_qo_heads": AnyValue(),
        "num_kv_heads": AnyValue(),
        "rotary_dim": AnyValue(),
        "interleaved": AnyValue(),
    }
    turned = {**heads, "head_dim": AnyValue(), "contiguous": AnyValue()}
    return [
        _backend("rope.apply_rope", **turned, scaling=AnyValue()),
        _backend("rope.apply_rope_cos_sin", **turned),
        _backend(
            "page.rope_append_paged_kv",
            **heads,
            head_dim_qk=AnyValue(),
            head_dim_vo=AnyValue(),
            page_size=AnyValue(),
            fp8=AnyValue(),
            fp8_q=AnyValue(),
            layout=AnyValue(),
        ),
    ]


def _attention_cost(problem: Problem) -> Estimate:
    """As an H200 was measured; a guess elsewhere, where Triton multiplies by other instructions.

    By wgmma prompts approach 0.43 of the peak as they get longer; a window cuts what there is to
    gain by length, and the tanh of a soft cap takes as long as the products. Custom masks,
    which are loaded for each pair, pages and heads that are padded were not measured, and are
    guessed low.
    """
    if problem.device.sm != _MEASURED_SM:
        return Efficiency(compute=0.2, memory=0.7, overhead_us=12)(problem)
    facts: Any = problem
    queries = facts.extent.qo_len or 1
    rate = max(0.43 * queries / (queries + 480), 0.06)
    if facts.features & {"window", "soft_cap"} or facts.mask != "none":
        rate *= 0.5
    dims = facts.head_dim_qk, facts.head_dim_vo
    if facts.kv == "paged" or any(dim & (dim - 1) for dim in dims):
        rate *= 0.7
    rates = Efficiency(compute=rate, memory=0.88, overhead_us=12, measured_on="H200")
    return rates(problem)


def _backend(op: str, **accepts: Constraint) -> Backend:
    """The backend of an op whose file and planner are called as the op is."""
    # Merges were not measured beside others.
    memory, measured_on = (0.85, "") if op.startswith("cascade.") else (0.93, "H200")
    name = op.partition(".")[2]
    return Backend(
        name="triton_misc",
        op=op,
        capability=Capability(devices=("cuda",), sm=_SM, accepts=accepts),
        cost=Efficiency(compute=0.03, memory=memory, overhead_us=3, measured_on=measured_on),
        load=f"attnhub_triton_misc.{name}:{name}",
        probe=_PROBE,
    )


def _attention() -> Backend:
    return Backend(
        name="triton_misc",
        op="attention",
        capability=Capability(
            devices=("cuda",),
            # Below, Triton has no tensor-core product; the one by FMA spills kilobytes a thread.
            sm=Range(80, None),
            accepts={
                "kv": OneOf("dense", "ragged", "paged"),
                "num_qo_heads": AnyValue(),
                "num_kv_heads": AnyValue(),
                "head_dim_qk": Range(1, 256),
                "head_dim_vo": Range(1, 256),
                "q_dtype": _FLOATS,
                "kv_dtype": OneOf(*_HALVES, "float32", *_FP8),
                "out_dtype": _FLOATS,
                "layout": OneOf("NHD", "HND"),
                "page_size": AnyValue(),
                "features": Subset(
                    "causal", "window", "soft_cap", "alibi", "sinks", "score_mod", "mask_mod",
                    "query_mod", "key_mod", "output_mod", "softmax_off",
                ),
                "mask": AnyValue(),
                "graph": AnyValue(),
                "deterministic": AnyValue(),
                "metadata": AnyValue(),
            },
            rules=tuple(
                Rule(
                    when={"q_dtype": OneOf(dtype)},
                    then={"kv_dtype": OneOf(dtype, *_FP8)},
                    why="both operands of a product have one dtype, that of q",
                )
                for dtype in (*_HALVES, "float32")
            ),
        ),
        cost=_attention_cost,
        load="attnhub_triton_misc.attention.planner:attention",
        probe=_PROBE,
    )  # fmt: skip


def _page() -> list[Backend]:
    entries: dict[str, Constraint] = {
        "dtype": OneOf(*_FLOATS.values, *_FP8),
        "page_size": AnyValue(),
    }
    names = ("num_kv_heads", "head_dim_qk", "head_dim_vo", "layout")
    heads: dict[str, Constraint] = dict.fromkeys(names, AnyValue())
    return [
        _backend("page.append_paged_kv", **entries, **heads),
        _backend("page.append_paged_mla", **entries, dim_ckv=AnyValue(), dim_kpe=AnyValue()),
        _backend("page.get_batch_indices_positions"),
        _backend("page.get_seq_lens"),
    ]


def _quantization() -> list[Backend]:
    scaled = dict.fromkeys(("fp8", "hidden", "scope", "contiguous"), AnyValue())
    return [
        _backend("quantization.packbits", bitorder=AnyValue()),
        _backend("quantization.unpackbits", bitorder=AnyValue()),
        _backend("quantization.segment_packbits", bitorder=AnyValue()),
        _backend("quantization.quantize_fp8", dtype=_FLOATS, **scaled, given_scale=AnyValue()),
        _backend("quantization.dequantize_fp8", dtype=_FLOATS, **scaled),
    ]
