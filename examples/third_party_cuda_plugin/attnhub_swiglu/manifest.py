"""What this plugin offers: data only, so that finding it costs nothing."""

from __future__ import annotations

from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    MultipleOf,
    OneOf,
    Range,
    hookimpl,
)


@hookimpl
def attnhub_backends() -> list[Backend]:
    """One backend, imported when it is first chosen."""
    return [
        Backend(
            name="swiglu",
            op="activation.silu_and_mul",
            capability=Capability(
                devices=("cuda",),
                sm=Range(80, None),
                accepts={
                    "dtype": OneOf("float16", "bfloat16"),
                    "hidden": MultipleOf(8),
                    "contiguous": AnyValue(),
                },
            ),
            # Guesses, so measured_on is left out: benchmarks/silu_and_mul.py tells the real ones.
            cost=Efficiency(compute=0.02, memory=0.8, overhead_us=3),
            load="attnhub_swiglu.planner:planner",
            probe="attnhub.plugin:kernels_run",
        )
    ]
