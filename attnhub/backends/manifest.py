"""The built-in plugin: AttnHub's own ops, and the PyTorch backends that serve them everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnhub.backends.contracts import CONTRACTS
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Constraint,
    Efficiency,
    Estimate,
    MultipleOf,
    OneOf,
    Op,
    Range,
    Rule,
    SameAs,
    Subset,
    hookimpl,
)

#: Plain PyTorch reads and writes memory several times; a guess, so that anything real ranks first.
_COST = Efficiency(compute=0.02, memory=0.05, overhead_us=50)

#: family -> op -> (problem class, how results compare, summary)
_OPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "activation": {
        "silu_and_mul": ("SiluAndMulProblem", "close", "silu of the gate, times up"),
        "gelu_and_mul": ("GeluAndMulProblem", "close", "exact gelu of the gate, times up"),
        "gelu_tanh_and_mul": ("GeluTanhAndMulProblem", "close", "tanh gelu of the gate, times up"),
    },
    "cascade": {
        "merge_state": ("MergeStateProblem", "close", "attention over two sets of keys"),
        "merge_state_in_place": (
            "MergeStateInPlaceProblem",
            "close",
            "merge_state into its first state",
        ),
        "merge_states": ("MergeStatesProblem", "close", "attention over n sets of keys"),
    },
    "gemm": {
        "segment_gemm": ("SegmentGemmProblem", "close", "each segment of rows times its matrix"),
    },
    "norm": {
        "rmsnorm": ("RMSNormProblem", "close", "root-mean-square norm"),
        "fused_add_rmsnorm": ("FusedAddRMSNormProblem", "close", "residual add, then rmsnorm"),
        "layernorm": ("LayerNormProblem", "close", "layer norm"),
    },
    "sampling": {
        "sample": ("SampleProblem", "distribution", "a token from filtered probabilities"),
        "sample_logits": ("SampleLogitsProblem", "distribution", "a token from filtered logits"),
        "softmax": ("SoftmaxProblem", "close", "softmax with a temperature per row"),
        "top_k_renorm": ("TopKRenormProblem", "close", "the k largest, renormalised"),
        "top_p_renorm": ("TopPRenormProblem", "close", "the top p of the mass, renormalised"),
        "top_k_mask_logits": ("TopKMaskLogitsProblem", "equal", "-inf but for the k largest"),
        "top_k": ("TopKProblem", "equal", "the k largest and their indices"),
        "chain_speculative": ("ChainSpeculativeProblem", "distribution", "verify a draft chain"),
        "tree_speculative": ("TreeSpeculativeProblem", "distribution", "verify a draft tree"),
    },
    "quantization": {
        "packbits": ("PackbitsProblem", "equal", "eight booleans into a byte"),
        "unpackbits": ("UnpackbitsProblem", "equal", "booleans out of bytes"),
        "segment_packbits": ("SegmentPackbitsProblem", "equal", "each segment from a new byte"),
        "quantize_fp8": ("QuantizeFp8Problem", "close", "FP8 values and their scales"),
        "dequantize_fp8": ("DequantizeFp8Problem", "close", "FP8 values times their scales"),
    },
    "rope": {
        "apply_rope": ("ApplyRopeProblem", "close", "rotary embedding"),
        "apply_rope_cos_sin": ("ApplyRopeCosSinProblem", "close", "rotary embedding by a table"),
    },
    "page": {
        "append_paged_kv": ("AppendPagedKVProblem", "equal", "new keys and values into a cache"),
        "append_paged_mla": ("AppendPagedMLAProblem", "equal", "new MLA rows into a cache"),
        "rope_append_paged_kv": (
            "RopeAppendPagedKVProblem",
            "close",
            "rotary embedding, then new keys and values into a cache, as FP8 or not",
        ),
        "get_batch_indices_positions": (
            "BatchIndicesPositionsProblem",
            "equal",
            "request and position of appended tokens",
        ),
        "get_seq_lens": ("SeqLensProblem", "equal", "tokens of each request of a page table"),
    },
}


def _ops() -> list[Op]:
    return [
        Op(
            name=f"{family}.{op}",
            summary=summary,
            problem=f"attnhub.{family}.problem:{problem}",
            workloads=f"attnhub.{family}.workloads:{op}",
            compare=compare,
            contracts=CONTRACTS[f"{family}.{op}"],
        )
        for family, ops in _OPS.items()
        for op, (problem, compare, summary) in ops.items()
    ]


def _references() -> list[Backend]:
    return [
        Backend(
            name="reference",
            op=f"{family}.{op}",
            capability=Capability(complete=True),
            cost=_COST,
            load=f"attnhub.backends.reference.{family}:{op}",
            priority=-100,
        )
        for family, ops in _OPS.items()
        for op in ops
    ]


_ATTENTION = Op(
    name="attention",
    summary="attention over dense, ragged, paged and block-sparse K/V",
    problem="attnhub.attn.problem:AttentionProblem",
    workloads="attnhub.attn.workloads:attention",
    contracts=CONTRACTS["attention"],
)

_MLA = Op(
    name="mla",
    summary="multi-head latent attention over a paged latent cache",
    problem="attnhub.mla.problem:MLAProblem",
    workloads="attnhub.mla.workloads:mla",
    contracts=CONTRACTS["mla"],
)


_FLOATS = OneOf("float16", "bfloat16", "float32")

_ONE_DTYPE = Rule(
    when={"q_dtype": AnyValue()},
    then={"kv_dtype": SameAs("q_dtype")},
    why="torch takes one dtype for q, k and v",
)

_SDPA = Capability(
    accepts={
        "kv": OneOf("dense", "ragged", "paged"),
        "num_qo_heads": AnyValue(),
        "num_kv_heads": AnyValue(),
        "head_dim_qk": AnyValue(),
        "head_dim_vo": AnyValue(),
        "q_dtype": _FLOATS,
        "kv_dtype": _FLOATS,
        "out_dtype": _FLOATS,
        "layout": OneOf("NHD", "HND"),
        "page_size": AnyValue(),
        "features": Subset("causal", "window"),
        "mask": OneOf("none", "bool", "packed"),
    },
    rules=(_ONE_DTYPE,),
)


def _request_by_request(op: str, load: str, **accepts: Constraint) -> Backend:
    # Such a loop cannot be captured, so graph mode is for CPUs only.
    sheets = (
        Capability(complete=True, devices=("cpu",), accepts=accepts),
        Capability(complete=True, devices=("cuda",), accepts={"graph": OneOf(False), **accepts}),
    )
    return Backend(
        name="reference",
        op=op,
        capability=sheets,
        cost=Efficiency(compute=0.02, memory=0.05, overhead_us=500),
        load=load,
        priority=-100,
    )


_HALF = OneOf("float16", "bfloat16")

_VARLEN = Capability(
    devices=("cuda",),
    sm=Range(80, None),
    accepts={
        "kv": OneOf("ragged"),
        "num_qo_heads": AnyValue(),
        "num_kv_heads": AnyValue(),
        "head_dim_qk": MultipleOf(8, 256),
        "head_dim_vo": MultipleOf(8, 256),
        "q_dtype": _HALF,
        "kv_dtype": _HALF,
        "out_dtype": OneOf("float16", "bfloat16", "float32"),
        "layout": OneOf("NHD", "HND"),
        "features": Subset("causal", "window"),
    },
    rules=(
        _ONE_DTYPE,
        Rule(
            when={"head_dim_qk": AnyValue()},
            then={"head_dim_vo": SameAs("head_dim_qk")},
            why="torch's varlen kernel takes one head dimension",
        ),
        Rule(
            when={"q_dtype": AnyValue()},
            then={"out_dtype": SameAs("q_dtype")},
            why="torch's varlen kernel rounds its output to the dtype of q",
        ),
    ),
)


#: Shares of an H200's datasheet rates, from benchmarks/results; overheads are guesses.
_FUSED = Efficiency(compute=0.5, memory=0.5, overhead_us=100, measured_on="H200")
_MASKED = Efficiency(compute=0.13, memory=0.3, overhead_us=100, measured_on="H200")
_GATHERED = Efficiency(compute=0.3, memory=0.09, overhead_us=100, measured_on="H200")
_VARLEN_COST = Efficiency(compute=0.3, memory=0.5, overhead_us=60, measured_on="H200")
_SDPA_CALL_US = 40.0


def _sdpa_cost(problem: Any) -> Estimate:
    """SDPA is fast without a mask; pages are gathered first; ragged requests are a call each."""
    if problem.kv == "paged":
        return _GATHERED(problem)
    masked = problem.mask != "none" or "window" in problem.features
    estimate = (_MASKED if masked else _FUSED)(problem)
    calls = (problem.extent.batch or 1) if problem.kv == "ragged" else 1
    assert estimate.us is not None  # an Efficiency always has a time
    return replace(estimate, us=estimate.us + (calls - 1) * _SDPA_CALL_US)


def _attention() -> list[Backend]:
    return [
        _request_by_request(
            "attention", "attnhub.backends.reference.attn:attention", functor=OneOf(False)
        ),
        Backend(
            name="torch_sdpa",
            op="attention",
            capability=_SDPA,
            cost=_sdpa_cost,
            load="attnhub.backends.sdpa:attention",
        ),
        Backend(
            name="torch_varlen",
            op="attention",
            capability=_VARLEN,
            cost=_VARLEN_COST,
            load="attnhub.backends.varlen:attention",
            torch=">=2.11",
        ),
    ]


@hookimpl
def attnhub_ops() -> list[Op]:
    """Every op of the core."""
    return [_ATTENTION, _MLA, *_ops()]


@hookimpl
def attnhub_backends() -> list[Backend]:
    """``reference`` for all of them, and ``torch_sdpa`` for a subset of attention."""
    mla = _request_by_request("mla", "attnhub.backends.reference.mla:mla")
    return [*_attention(), mla, *_references()]
