"""The attention kernel as a spec: its template, its parameters, what decides its source."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.plugin import (
    FAST_DIV,
    INCLUDE_DIR,
    SCHEDULE,
    SECTION,
    AttentionProblem,
    KernelSpec,
    ParamLayout,
    arch,
)
from attnhub_fa2_cuda.tiles import Tile

_ELEMENTS = {"float16": "Half", "bfloat16": "Bf16", "float32": "float"}

_TENSOR = ParamLayout(
    {"base": "const void*", "stride_page": "i64", "stride_slot": "i64", "stride_head": "i64"}
)
_SCALE = ParamLayout({"values": "const float*", "stride": "i32"})
#: C++ type of the variant -> its members.
_VARIANTS = {"PlainVariant": ParamLayout({}), "SoftCap": ParamLayout({"cap": "float"})}


def _params(variant: str) -> ParamLayout:
    return ParamLayout(
        {
            "q": "const void*",
            "stride_q_token": "i64",
            "stride_q_head": "i64",
            "k": _TENSOR,
            "v": _TENSOR,
            "out": "void*",
            "lse": "float*",
            "stride_out_token": "i64",
            "stride_out_head": "i64",
            "stride_lse_token": "i64",
            "num_tokens": "i32",
            "scale": "float",
            "scale_v": "float",
            "scales_q": _SCALE,
            "scales_k": _SCALE,
            "scales_v": _SCALE,
            "variant": _VARIANTS[variant],
            "qo_end": "const i32*",
            "table": ParamLayout({"indices": "const i32*", "page_size": FAST_DIV}),
            "schedule": SCHEDULE,
            "section": SECTION,
            "partial_out": "float*",
            "partial_lse": "float*",
            "num_qo_heads": "i32",
            "group": FAST_DIV,
            "groups_per_kv": "i32",
            "num_lanes": "i32",
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the template sees."""

    element: str
    output: str
    variant: str
    tiles_m: int
    warps_m: int
    warps_n: int
    block_n: int
    stages: int
    ctas_per_sm: int
    smem: int


def spec(problem: AttentionProblem, tile: Tile) -> KernelSpec:
    """The kernel of a problem with one tile shape."""
    variant = _variant(problem)
    return KernelSpec(
        name=f"fa2_{tile.name}_{problem.q_dtype}_{variant}",
        template="attnhub_fa2_cuda:templates/attention.cu.jinja",
        context=_Context(
            element=_ELEMENTS[problem.q_dtype],
            output=_ELEMENTS[problem.out_dtype],
            variant=variant,
            tiles_m=tile.tiles_m,
            warps_m=tile.warps_m,
            warps_n=tile.warps_n,
            block_n=tile.block_n,
            stages=tile.stages,
            ctas_per_sm=tile.ctas_per_sm,
            smem=tile.smem,
        ),
        entry="attnhub_fa2_attention",
        params=_params(variant),
        arch=arch(problem.device),
        include_dirs=("attnhub_fa2_cuda:include", INCLUDE_DIR),
    )


def _variant(problem: AttentionProblem) -> str:
    return "PlainVariant" if problem.variant.soft_cap is None else "SoftCap"
