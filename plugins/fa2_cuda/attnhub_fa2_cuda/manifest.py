"""What this plugin offers: data only, so that finding it costs nothing."""

from __future__ import annotations

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Constraint,
    Efficiency,
    MultipleOf,
    OneOf,
    Range,
    Rule,
    SameAs,
    Subset,
    hookimpl,
)

_PROBE = "attnhub.plugin:kernels_run"


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
                "kv": OneOf("ragged", "paged"),
                "num_qo_heads": AnyValue(),
                "num_kv_heads": AnyValue(),
                "head_dim_qk": OneOf(128),
                "head_dim_vo": OneOf(128),
                "q_dtype": OneOf("float16", "bfloat16"),
                "kv_dtype": OneOf("float16", "bfloat16"),
                "out_dtype": OneOf("float16", "bfloat16", "float32"),
                "layout": OneOf("NHD", "HND"),
                "page_size": AnyValue(),
                "features": Subset("causal", "window", "soft_cap"),
                "graph": AnyValue(),
                "metadata": AnyValue(),
            },
            rules=(
                Rule(
                    when={"q_dtype": AnyValue()},
                    then={"kv_dtype": SameAs("q_dtype")},
                    why="both operands of a product have one dtype",
                ),
            ),
        ),
        cost=Efficiency(compute=0.34, memory=0.9, overhead_us=6, measured_on="H200"),
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
