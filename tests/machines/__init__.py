"""Small kernels of one device function each, and the machines that a test runs them on.

A test takes the parameter ``machine`` and calls ``kernel_on(machine, spec).run(launch, **values)``:
the emulator and a GPU get the same source, the same launch and the same CPU tensors.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pytest

from attnhub.plugin import INCLUDE_DIR, KernelSpec, ParamLayout
from attnhub.testing.emulator import EmulatedKernel
from tests.machines.gpu import GpuKernel

_GPU = pytest.mark.gpu

#: Values of the parameter ``machine``.
MACHINES = ["emulator", pytest.param("gpu", marks=_GPU)]
#: Of kernels with instructions of sm_89, and of sm_90.
ADA_MACHINES = ["emulator", pytest.param("gpu", marks=_GPU(sm=89))]
HOPPER_MACHINES = ["emulator", pytest.param("gpu", marks=_GPU(sm=90))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """The function that a kernel calls, the struct it takes, and the kernel's launch bounds."""

    header: str
    function: str
    params: str
    bounds: tuple[int, ...] = (128,)


def function_spec(
    function: Function, *, layout: ParamLayout, headers: str, arch: str = "sm_80"
) -> KernelSpec:
    """The kernel of a device function; on a GPU, the GPU's own architecture replaces ``arch``.

    Args:
        function: with namespace and template arguments.
        layout: of the struct that it takes.
        headers: the folder of its header, ``"package:path"``.
        arch: what gates compile it for.
    """
    return KernelSpec(
        name=re.sub(r"\W+", "-", function.function.replace("attnhub::", "")).strip("-"),
        template="tests.machines:templates/kernel.cu.jinja",
        context=function,
        entry=function.function.partition("<")[0].rpartition("::")[2],
        params=layout,
        arch=arch,
        include_dirs=(INCLUDE_DIR, headers),
    )


emulated = functools.cache(EmulatedKernel.from_spec)


def kernel_on(machine: str, spec: KernelSpec) -> EmulatedKernel | GpuKernel:
    """The kernel of a spec on one of the machines, compiled once."""
    return emulated(spec) if machine == "emulator" else GpuKernel.from_spec(spec)
