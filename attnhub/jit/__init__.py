"""From a kernel's spec to its launch: render, compile with NVRTC or nvcc, keep, load. No torch.

This package knows nothing of attention. Plugins reach it through :mod:`attnhub.plugin`.
"""

from __future__ import annotations

from attnhub.jit.build import Cubin, Progress, compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Compiler, Finding, Unit, choose, discover
from attnhub.jit.errors import CacheWarning, CompileError, DriverError, LaunchError, NoCompiler
from attnhub.jit.launcher import Launcher, LoadedKernel
from attnhub.jit.params import ParamLayout
from attnhub.jit.spec import EntryPoint, KernelSpec
from attnhub.jit.store import Entry
from attnhub.jit.tensor_map import TensorMap

__all__ = [
    "Cache",
    "CacheWarning",
    "CompileError",
    "Compiler",
    "Cubin",
    "DriverError",
    "Entry",
    "EntryPoint",
    "Finding",
    "KernelSpec",
    "LaunchError",
    "Launcher",
    "LoadedKernel",
    "NoCompiler",
    "ParamLayout",
    "Progress",
    "TensorMap",
    "Unit",
    "choose",
    "compile_kernels",
    "discover",
]
