"""The attention kernel as a spec: its template, its parameters, what decides its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from attnhub.plugin import (
    FAST_DIV,
    INCLUDE_DIR,
    SCHEDULE,
    SECTION,
    AttentionProblem,
    KernelSpec,
    ParamLayout,
    Rope,
    VariantCode,
    arch,
)
from attnhub_fa2_cuda.tiles import Format, Tile

_ELEMENTS = {
    "float16": "Half",
    "bfloat16": "Bf16",
    "float32": "float",
    "float8_e4m3fn": "E4m3",
    "float8_e5m2": "E5m2",
}

_TENSOR = ParamLayout(
    {"base": "const void*", "stride_page": "i64", "stride_slot": "i64", "stride_head": "i64"}
)
_SCALE = ParamLayout({"values": "const float*", "stride": "i32"})
_SHARE = ParamLayout(
    {
        "schedule": SCHEDULE,
        "section": SECTION,
        "partial_out": "float*",
        "partial_lse": "float*",
        "group": FAST_DIV,
        "groups_per_kv": "i32",
        "num_lanes": "i32",
    }
)
_NOTHING = ParamLayout({})
_MASK = ParamLayout({"data": "const u8*", "offsets": "const i64*"})
_ROTATION = ParamLayout(
    {
        "frequencies": "const float*",
        "q_offsets": "const i32*",
        "k_offsets": "const i32*",
        "factor": "float",
    }
)


@lru_cache
def _params(
    variant: ParamLayout, mask: ParamLayout, rotation: ParamLayout, shares: int
) -> ParamLayout:
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
            "scale_q": "float",
            "scale_k": "float",
            "scale_v": "float",
            "scales_q": _SCALE,
            "scales_k": _SCALE,
            "scales_v": _SCALE,
            "variant": variant,
            "qo_end": "const i32*",
            "mask": mask,
            "rotation": rotation,
            "table": ParamLayout({"indices": "const i32*", "page_size": FAST_DIV}),
            "num_qo_heads": "i32",
            **{f"shares[{i}]": _SHARE for i in range(shares)},
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What the template sees of a tile."""

    tiles_m: int
    warps_m: int
    warps_n: int
    block_n: int
    stages: int
    smem: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the template sees."""

    element: str
    kv: str
    output: str
    dim_qk: int
    dim_vo: int
    variant: str
    mask: str
    rotation: str
    tiles: tuple[_Shape, ...]
    threads: int
    ctas_per_sm: int


def format_of(problem: AttentionProblem) -> Format:
    """The widths that tiles are chosen by."""
    return Format(
        dim_qk=problem.head_dim_qk,
        dim_vo=problem.head_dim_vo,
        kv_bytes=1 if problem.kv_dtype.startswith("float8") else 2,
    )


def rotary_dim(problem: AttentionProblem, rope: Rope) -> int:
    """How many channels of a head turn."""
    return rope.rotary_dim or problem.head_dim_qk


def spec(problem: AttentionProblem, name: str, tiles: Sequence[Tile]) -> KernelSpec:
    """The kernel of a problem with one tile shape or two."""
    code = VariantCode.of(problem.variant)
    form = format_of(problem)
    rope = problem.variant.rope
    shapes = tuple(
        _Shape(
            tiles_m=tile.tiles_m,
            warps_m=tile.warps_m,
            warps_n=tile.warps_n,
            block_n=tile.block_n,
            stages=tile.stages,
            smem=tile.smem(form),
        )
        for tile in tiles
    )
    rotation = "NoRotation"
    if rope is not None:
        interleaved = str(rope.interleaved).lower()
        rotation = f"Rotation<{rotary_dim(problem, rope)}, {interleaved}>"
    mask = _mask(problem)
    return KernelSpec(
        name=_name(problem, name),
        template="attnhub_fa2_cuda:templates/attention.cu.jinja",
        context=_Context(
            element=_ELEMENTS[problem.q_dtype],
            kv=_ELEMENTS[problem.kv_dtype],
            output=_ELEMENTS[problem.out_dtype],
            dim_qk=form.dim_qk,
            dim_vo=form.dim_vo,
            variant=code.source,
            mask=mask,
            rotation=rotation,
            tiles=shapes,
            threads=tiles[0].threads,
            ctas_per_sm=min(tile.ctas_per_sm for tile in tiles),
        ),
        entry="attnhub_fa2_attention",
        params=_params(
            code.params,
            _NOTHING if mask == "NoMask" else _MASK,
            _NOTHING if rope is None else _ROTATION,
            len(tiles),
        ),
        arch=arch(problem.device),
        include_dirs=("attnhub_fa2_cuda:include", INCLUDE_DIR),
    )


def _mask(problem: AttentionProblem) -> str:
    """The type of the custom mask. Blocks may bring one with any batch, a byte for each pair."""
    if problem.block is not None:
        return "BatchMask<false>"
    return {"none": "NoMask", "bool": "BatchMask<false>", "packed": "BatchMask<true>"}[problem.mask]


#: What kernels have nothing of: it changes no source.
_FREE = {"causal", "window"}


def _name(problem: AttentionProblem, tiles: str) -> str:
    form = format_of(problem)
    dims = f"{form.dim_qk}" if form.dim_qk == form.dim_vo else f"{form.dim_qk}_{form.dim_vo}"
    dtypes = (
        problem.q_dtype
        if problem.kv_dtype == problem.q_dtype
        else f"{problem.q_dtype}_{problem.kv_dtype}"
    )
    parts = ["fa2", tiles, dtypes, f"d{dims}", *sorted(problem.features - _FREE)]
    if problem.block is not None:
        parts.append("blocks")
    elif problem.mask != "none":
        parts.append(f"{problem.mask}_mask")
    return "_".join(parts)
