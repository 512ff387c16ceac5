"""What this plugin offers: data only, so that finding it costs nothing."""

from __future__ import annotations

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Constraint,
    Efficiency,
    Estimate,
    MultipleOf,
    OneOf,
    Problem,
    Range,
    Rule,
    Subset,
    hookimpl,
)

_HALVES = ("float16", "bfloat16")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_CHANGE_NO_KEYS = (
    "causal",
    "window",
    "soft_cap",
    "alibi",
    "sinks",
    "score_mod",
    "mask_mod",
    "query_mod",
    "output_mod",
    "softmax_off",
)
_PROBE = "attnhub.plugin:kernels_run"


#: Data sheets of these GPUs give the rate of mma.sync; those of others that of instructions which
#: the kernel does not use, and which are half as fast again or more.
_MMA_SYNC = {80, 86, 87, 88, 89, 120, 121}
_COST = Efficiency(compute=0.34, memory=0.92, overhead_us=6, measured_on="H200")
#: From the same run: 0.55 of what mma.sync can do there.
_MMA_SYNC_COST = Efficiency(compute=0.55, memory=0.9, overhead_us=6)


def _attention_cost(problem: Problem) -> Estimate:
    """By the rate that the data sheet of a GPU gives."""
    return (_MMA_SYNC_COST if problem.device.sm in _MMA_SYNC else _COST)(problem)


@hookimpl
def attnhub_backends() -> list[Backend]:
    """Every backend, imported when it is first chosen."""
    return [
        _attention(),
        _merge("merge_state"),
        _merge("merge_state_in_place", mask=AnyValue()),
        _merge("merge_states", num_states=AnyValue()),
    ]


def _attention() -> Backend:
    return Backend(
        name="fa2_cuda",
        op="attention",
        capability=Capability(
            devices=("cuda",),
            sm=Range(80, None),
            accepts={
                "kv": OneOf("ragged", "paged", "block_sparse"),
                "num_qo_heads": AnyValue(),
                "num_kv_heads": AnyValue(),
                "head_dim_qk": MultipleOf(16, 256),
                "head_dim_vo": MultipleOf(16, 256),
                "q_dtype": OneOf(*_HALVES),
                "kv_dtype": OneOf(*_HALVES, *_FP8),
                "out_dtype": OneOf(*_HALVES, "float32"),
                "layout": OneOf("NHD", "HND"),
                "page_size": AnyValue(),
                "block": AnyValue(),
                "features": Subset(*_CHANGE_NO_KEYS, "rope", "key_mod"),
                "functor": AnyValue(),
                "mask": AnyValue(),
                "offsets": AnyValue(),
                "graph": AnyValue(),
                "deterministic": AnyValue(),
                "metadata": AnyValue(),
            },
            rules=(
                *(
                    Rule(
                        when={"q_dtype": OneOf(dtype)},
                        then={"kv_dtype": OneOf(dtype, *_FP8)},
                        why="both operands of a product have one dtype, that of q",
                    )
                    for dtype in _HALVES
                ),
                Rule(
                    when={"kv_dtype": OneOf(*_FP8)},
                    then={"features": Subset(*_CHANGE_NO_KEYS)},
                    why="keys that are rotated or changed no longer fit into FP8",
                ),
                Rule(
                    when={"kv": OneOf("block_sparse")},
                    then={"features": Subset("soft_cap", "sinks")},
                    why="keys that are read block by block come without their positions",
                ),
            ),
        ),
        cost=_attention_cost,
        load="attnhub_fa2_cuda.attention:attention",
        probe=_PROBE,
    )


def _merge(name: str, **more: Constraint) -> Backend:
    """The backend of an op of ``cascade``; ``more`` are the facts that it has beside the others."""
    return Backend(
        name="fa2_cuda",
        op=f"cascade.{name}",
        capability=Capability(
            devices=("cuda",),
            sm=Range(80, None),
            accepts={
                "dtype": OneOf("float16", "bfloat16", "float32"),
                "num_heads": AnyValue(),
                "head_dim": MultipleOf(8),
                "contiguous": AnyValue(),
                **more,
            },
        ),
        cost=Efficiency(compute=0.03, memory=0.86, overhead_us=2, measured_on="H200"),
        load=f"attnhub_fa2_cuda.merge:{name}",
        probe=_PROBE,
    )
