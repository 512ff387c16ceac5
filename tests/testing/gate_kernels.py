"""Kernels that the compilers make something bad of, each in one source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnhub.jit.params import ParamLayout
from attnhub.jit.spec import KernelSpec

_KERNEL = """\
struct Params {{
  float* x;  // [n]
  int n;
}};

extern "C" __global__ void __launch_bounds__({bounds}) k(const __grid_constant__ Params p) {{
{body}
}}
"""

#: Eight bytes to and from each thread, in registers alone.
CLEAN = """\
  float2* pair = reinterpret_cast<float2*>(p.x) + threadIdx.x;
  const float2 v = *pair;
  *pair = make_float2(v.y, v.x);
"""
#: 64 values live at once, and with 2048 threads an SM has 32 registers for each.
SPILLS = """\
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = p.x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) p.x[(i * 37 + p.n) * 1024 + threadIdx.x] = a[63 - i] * a[i * 7 % 64];
"""
#: A place that is known only when the kernel runs cannot be a register.
STACK = """\
  float a[64];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) a[p.n * i % 64] = p.x[i];
  p.x[0] = a[p.n % 64];
"""
#: The accumulator is touched between a product and its wait. A descriptor that is the constant 0
#: would do too, but NVRTC 13.0 crashes on it.
SERIALISED = """\
  float d[4] = {};
  for (int i = 0; i < p.n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
        "{ %0, %1, %2, %3 }, %4, %4, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(static_cast<unsigned long long>(p.n)));
    d[0] += 1.0f;
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) p.x[threadIdx.x * 4 + i] = d[i];
"""


@dataclass(frozen=True)
class Nothing:
    """A context without fields."""


@dataclass(frozen=True, kw_only=True)
class KernelFolder:
    """An importable package for the kernels of one test."""

    folder: Path

    def spec(self, body: str, *, arch: str = "sm_80", bounds: str = "128") -> KernelSpec:
        """A kernel with this body."""
        template = self.folder / "kernel.cu.jinja"
        template.write_text(_KERNEL.format(bounds=bounds, body=body))
        return KernelSpec(
            name="k",
            template=f"{self.folder.name}:{template.name}",
            context=Nothing(),
            entry="k",
            params=ParamLayout({"x": "float*", "n": "int"}),
            arch=arch,
        )
