"""Specs of small kernels that show what a launch carries; they run on GPUs and in the emulator."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.plugin import INCLUDE_DIR, KernelSpec, ParamLayout

_HERE = "tests.kernels.launch"
_RANGE = ParamLayout({"is_negated": "bool", "begin": "i64", "end": "i64"})

SCALE = ParamLayout(
    {"x": "const float*", "range": _RANGE, "y": "float*", "factor": "double", "n": "u32"}
)
PASS = ParamLayout({"x": "const float*", "y": "float*"})
COPY = ParamLayout({"scale": "float", "x": "TensorMap", "y": "TensorMap"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """The function that a kernel calls, the struct it takes, and the most threads of a CTA."""

    body: str
    params: str
    threads: int = 128


def _spec(name: str, context: _Body, params: ParamLayout, arch: str) -> KernelSpec:
    return KernelSpec(
        name=name,
        template=f"{_HERE}:templates/launch.cu.jinja",
        context=context,
        entry=name,
        params=params,
        arch=arch,
        include_dirs=(INCLUDE_DIR, f"{_HERE}:include"),
    )


def scale(arch: str) -> KernelSpec:
    """Scales a range of a vector."""
    return _spec("scale", _Body(body="scale", params="ScaleParams"), SCALE, arch)


def pass_left(arch: str, ctas: int = 2) -> KernelSpec:
    """Reads the shared memory of the next CTA of a cluster."""
    context = _Body(body=f"pass_left<{ctas}>", params="PassParams")
    return _spec("pass_left", context, PASS, arch)


def copy_boxes(arch: str) -> KernelSpec:
    """Copies a matrix by TMA."""
    return _spec("copy_boxes", _Body(body="copy_boxes", params="CopyParams"), COPY, arch)


ALL = (scale, pass_left, copy_boxes)
