"""Specs of the kernels in ``kernels``, each of which is a device function of one struct."""

from __future__ import annotations

from attnhub.plugin import KernelSpec, ParamLayout
from tests.machines import Function, function_spec

_LAYOUTS = {
    "clusters::Params": ParamLayout({"x": "TensorMap", "y": "float*"}),
    "gemm_hopper::Params": ParamLayout(dict.fromkeys("abc", "TensorMap") | {"k": "int"}),
    "gemm_tile::Params": ParamLayout(
        {"a": "const void*", "b": "const void*", "c": "float*", "m": "int", "n": "int", "k": "int"}
    ),
    "layouts::Params": ParamLayout({"offsets": "i32*", "n": "int"}),
    "layouts::ProductParams": ParamLayout({"a": "const u32*", "b": "const u32*", "d": "float*"}),
    "primitives::Params": ParamLayout(
        {"x": "const float*", "y": "float*", "words": "i32*", "n": "int"}
    ),
    "tma::Params": ParamLayout(
        {
            "x": "TensorMap",
            "y": "TensorMap",
            "load_at": "const i32*",
            "store_at": "const i32*",
            "boxes": "i32*",
            "num_bytes": "int",
        }
    ),
    "wgmma::Params": ParamLayout(
        dict.fromkeys(("a", "a_mn", "b", "b_mn"), "const void*") | {"d": "float*"}
    ),
}


def spec(
    function: str,
    params: str = "Params",
    *,
    bounds: tuple[int, ...] = (128,),
    arch: str = "sm_90a",
) -> KernelSpec:
    """The kernel of a function of ``kernels/NAMESPACE.cuh``.

    Args:
        function: with its namespace and template arguments.
        params: the struct that it takes, of the same namespace.
        bounds: the most threads of a CTA, and the least CTAs of an SM.
        arch: what gates compile it for.
    """
    namespace = function.partition("::")[0]
    return function_spec(
        Function(
            header=f"{namespace}.cuh",
            function=function,
            params=f"{namespace}::{params}",
            bounds=bounds,
        ),
        layout=_LAYOUTS[f"{namespace}::{params}"],
        headers="tests.emulator:kernels",
        arch=arch,
    )
