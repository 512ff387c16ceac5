"""From a kernel's spec to its cubin: render, compile with NVRTC or nvcc, keep. Free of torch.

This package knows nothing of attention. Plugins reach it through :mod:`attnhub.plugin`.
"""

from __future__ import annotations

from attnhub.jit.build import Cubin, Progress, compile_kernels
from attnhub.jit.cache import Cache, Entry
from attnhub.jit.compilers import Compiler, Finding, Unit, choose, discover
from attnhub.jit.errors import CacheWarning, CompileError, NoCompiler
from attnhub.jit.spec import KernelSpec

__all__ = [
    "Cache",
    "CacheWarning",
    "CompileError",
    "Compiler",
    "Cubin",
    "Entry",
    "Finding",
    "KernelSpec",
    "NoCompiler",
    "Progress",
    "Unit",
    "choose",
    "compile_kernels",
    "discover",
]
