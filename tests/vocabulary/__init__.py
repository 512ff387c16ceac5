"""Small kernels of one function of ``attnhub/include`` each, for a GPU and for the emulator."""

from __future__ import annotations

from typing import Any

from attnhub.kernels.fastdiv import FAST_DIV
from attnhub.plugin import KernelSpec, ParamLayout
from attnhub.testing.emulator import Launch
from tests.machines import Function, function_spec, kernel_on

_LAUNCH = Launch(grid=(4,), block=128, smem=512)
_PARAMS: dict[str, ParamLayout] = {
    "WidenParams": ParamLayout(
        {
            "codes": "const u8*",
            "neighbours": "u32*",
            "alternate": "u32*",
            "wide": "float*",
            "n": "int",
        }
    ),
    "NarrowParams": ParamLayout({"x": "const float*", "codes": "u16*", "n": "int"}),
    "ScoresParams": ParamLayout({"q": "const u32*", "k": "const u8*", "d": "float*"}),
    "OutputParams": ParamLayout({"weights": "const u32*", "v": "const u8*", "d": "float*"}),
    "RopeParams": ParamLayout(
        {
            "frequencies": "const float*",
            "positions": "const i32*",
            "x": "float*",
            "factor": "float",
            "tokens": "int",
            "dim": "int",
        }
    ),
    "MaskParams": ParamLayout(
        {
            "mask": "const u8*",
            "words": "u32*",
            "begin": "i64",
            "qo_len": "int",
            "kv_len": "int",
            "rows": "int",
            "columns": "int",
        }
    ),
    "DivideParams": ParamLayout(
        {"numbers": "const i32*", "quotients": "i32*", "n": "int", "divisor": FAST_DIV}
    ),
}


def spec(body: str, params: str, arch: str = "sm_80") -> KernelSpec:
    """The kernel ``vocabulary::body(vocabulary::params)``."""
    function = Function(
        header="vocabulary/kernels.cuh",
        function=f"vocabulary::{body}",
        params=f"vocabulary::{params}",
    )
    layout = _PARAMS[params]
    return function_spec(function, layout=layout, headers="tests.vocabulary:include", arch=arch)


def run(machine: str, body: str, params: str, **values: Any) -> None:
    """Run a kernel on CPU tensors; those that are not ``const`` hold its results."""
    kernel_on(machine, spec(body, params)).run(_LAUNCH, **values)
