"""What this plugin offers: data only, so that finding it costs nothing."""

from __future__ import annotations

from attnhub.plugin import AnyValue, Backend, Capability, Efficiency, OneOf, Subset, hookimpl

_FLOATS = OneOf("float16", "bfloat16", "float32")

#: A field left out here, such as ``page_size``, has its default: this backend does not know it.
_DENSE = Capability(
    accepts={
        "kv": OneOf("dense"),
        "num_qo_heads": AnyValue(),
        "num_kv_heads": AnyValue(),
        "head_dim_qk": AnyValue(),
        "head_dim_vo": AnyValue(),
        "q_dtype": _FLOATS,
        "kv_dtype": _FLOATS,
        "out_dtype": _FLOATS,
        "features": Subset("causal", "window", "soft_cap", "alibi"),
        "mask": OneOf("none", "bool"),
    },
)


@hookimpl
def attnhub_backends() -> list[Backend]:
    """One backend, imported when it is first chosen."""
    return [
        Backend(
            name="flex",
            op="attention",
            capability=_DENSE,
            # Uncompiled, it forms every score; the overhead was measured, the shares are guesses.
            cost=Efficiency(compute=0.01, memory=0.02, overhead_us=4000),
            load="attnhub_flex.planner:planner",
            torch=">=2.9",
        )
    ]
