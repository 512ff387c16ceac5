"""The built-in plugin: AttnHub's own ops, and the PyTorch backends that serve them everywhere."""

from __future__ import annotations

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    OneOf,
    Op,
    Rule,
    Subset,
    hookimpl,
)

#: Plain PyTorch reads and writes memory several times; a guess, so that anything real ranks first.
_COST = Efficiency(compute=0.02, memory=0.05, overhead_us=50)

#: family -> op -> (problem class, how results compare, summary)
_OPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "norm": {
        "rmsnorm": ("RMSNormProblem", "close", "root-mean-square norm"),
        "fused_add_rmsnorm": ("FusedAddRMSNormProblem", "close", "residual add, then rmsnorm"),
        "layernorm": ("LayerNormProblem", "close", "layer norm"),
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
)


_FLOATS = OneOf("float16", "bfloat16", "float32")

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
    rules=tuple(
        Rule(
            when={"q_dtype": OneOf(dtype)},
            then={"kv_dtype": OneOf(dtype)},
            why="SDPA takes one dtype for q, k and v",
        )
        for dtype in _FLOATS.values
    ),
)


def _attention() -> list[Backend]:
    # A request-by-request loop cannot be captured, so graph mode is for CPUs only.
    sheets = (
        Capability(complete=True, devices=("cpu",)),
        Capability(complete=True, devices=("cuda",), accepts={"graph": OneOf(False)}),
    )
    return [
        Backend(
            name="reference",
            op="attention",
            capability=sheets,
            cost=Efficiency(compute=0.02, memory=0.05, overhead_us=500),
            load="attnhub.backends.reference.attn:attention",
            priority=-100,
        ),
        Backend(
            name="torch_sdpa",
            op="attention",
            capability=_SDPA,
            # A fused kernel where torch has one; the gather of pages is not counted. A guess.
            cost=Efficiency(compute=0.3, memory=0.3, overhead_us=100),
            load="attnhub.backends.sdpa:attention",
        ),
    ]


@hookimpl
def attnhub_ops() -> list[Op]:
    """Every op of the core."""
    return [_ATTENTION, *_ops()]


@hookimpl
def attnhub_backends() -> list[Backend]:
    """``reference`` for all of them, and ``torch_sdpa`` for a subset of attention."""
    return [*_attention(), *_references()]
