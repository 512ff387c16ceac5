"""``EmulatedKernel.from_spec``: the rendered source, compiled for the CPU, gives right numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from attnhub.errors import InvalidArgument
from attnhub.jit import discover
from attnhub.plugin import Cache, ParamLayout, compile_kernels
from attnhub.testing.emulator import BuildFailed, EmulatedKernel, Launch, OutOfBounds, TensorMap
from tests.kernels import launch

ARCH = "sm_90a"


def test_nested_structs_and_every_scalar_arrive() -> None:
    x = torch.randn(300)
    y = torch.full_like(x, torch.nan)
    kernel = EmulatedKernel.from_spec(launch.scale(ARCH))
    inside = {"is_negated": True, "begin": 100, "end": 2**40}
    kernel.run(Launch(grid=(3,), block=128), x=x, y=y, range=inside, factor=2.5, n=300)
    expected = torch.where(torch.arange(300) < 100, x, -2.5 * x)
    assert torch.equal(y, expected)


def test_cluster() -> None:
    x = torch.randn(4, 32)
    y = torch.full_like(x, torch.nan)
    kernel = EmulatedKernel.from_spec(launch.pass_left(ARCH))
    kernel.run(Launch(grid=(4,), block=32, cluster=2, smem=128), x=x, y=y)
    assert torch.equal(y, x[[1, 0, 3, 2]])


def test_tensor_maps_between_other_members() -> None:
    x = torch.randn(20, 128).half()
    y = torch.full_like(x, torch.nan)
    kernel = EmulatedKernel.from_spec(launch.copy_boxes(ARCH))
    maps = {
        "x": TensorMap(tensor=x, box=(8, 64), swizzle=0),
        "y": TensorMap(tensor=y, box=(8, 64), swizzle=0, writable=True),
    }
    kernel.run(Launch(grid=(2, 3), block=32, smem=1032), scale=7.0, **maps)
    assert y.view(torch.int16)[0, 0] == 7
    y[0, 0] = x[0, 0]
    assert torch.equal(y, x)


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_the_same_source_compiles_for_gpus(compiler: str, tmp_path: Path) -> None:
    finding = {f.name: f for f in discover()}[compiler]
    if finding.compiler is None:
        pytest.skip(finding.why)
    specs = [launch.scale("sm_80"), *(make(ARCH) for make in launch.ALL)]
    for cubin in compile_kernels(specs, cache=Cache(tmp_path), compiler=finding.compiler):
        assert cubin.spec.entry.encode() in cubin.image


def test_errors_name_the_line_of_the_kernel() -> None:
    x = torch.zeros(10)
    kernel = EmulatedKernel.from_spec(launch.scale(ARCH))
    inside = {"is_negated": False, "begin": 0, "end": 0}
    with pytest.raises(OutOfBounds, match=r"^scale: .* at kernels\.cuh:\d+"):
        kernel.run(Launch(block=32), x=x, y=x.clone(), range=inside, factor=1.0, n=11)


def test_a_layout_that_differs_from_the_source_is_refused() -> None:
    flat = ParamLayout({"x": "const float*", "range": "bool", "y": "float*"})
    inner = ParamLayout({"x": "const float*", "range": ParamLayout({"first": "i64"})})
    with pytest.raises(BuildFailed, match=r"launch::Range. has no member named .first"):
        EmulatedKernel.from_spec(dataclasses.replace(launch.scale(ARCH), params=inner))
    where = "scale do not match its source at 'y': it is at byte 16 of params, and at byte 32 of"
    with pytest.raises(InvalidArgument, match=where):
        EmulatedKernel.from_spec(dataclasses.replace(launch.scale(ARCH), params=flat))
