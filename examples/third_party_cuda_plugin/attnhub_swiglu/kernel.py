"""The kernel: what it is given, and what its source is rendered from."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.plugin import INCLUDE_DIR, KernelSpec, ParamLayout

CHUNK = 8  # elements that one instruction moves
THREADS = 128

_ELEMENTS = {"float16": "attnhub::Half", "bfloat16": "attnhub::Bf16"}


def _params(element: str) -> ParamLayout:
    return ParamLayout(
        {
            "x": f"const {element}*",
            "out": f"{element}*",
            "stride_x": "i64",
            "stride_out": "i64",
            "num_rows": "i64",
            "num_chunks": "i32",
            "is_aligned": "bool",
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the template sees."""

    element: str
    threads: int


def spec(dtype: str, arch: str) -> KernelSpec:
    """The kernel for one dtype; it serves rows of any length."""
    element = _ELEMENTS[dtype]
    return KernelSpec(
        name=f"swiglu_{dtype}",
        template="attnhub_swiglu:templates/silu_and_mul.cu.jinja",
        context=_Context(element=element, threads=THREADS),
        entry="attnhub_swiglu_silu_and_mul",
        params=_params(element),
        arch=arch,
        include_dirs=("attnhub_swiglu:include", INCLUDE_DIR),
    )
