"""The emulator's libraries work as whatever compiler a distribution ships builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import torch
from pathlib import Path
from attnhub.plugin import ParamLayout
from attnhub.testing.emulator import EmulatedKernel, Launch
kernel = EmulatedKernel("double.cuh", kernel="twice", params=ParamLayout({"x": "float*"}),
                        include_dirs=[Path.cwd()])
x = torch.arange(64.0)
kernel.run(Launch(block=64), x=x)
assert torch.equal(x, torch.arange(0.0, 128, 2)), x
"""
SOURCE = """
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/memory.cuh"
using namespace attnhub;
struct Params { float* x; };
__global__ void twice(const __grid_constant__ Params p) {
  const float old = ptx::ld_global(p.x + threadIdx.x);
  ptx::sync_threads();
  ptx::st_global(p.x + threadIdx.x, 2 * old);
}
"""


#: Ubuntu's first of all: its checked longjmp aborts when one fiber leaves for another.
HARDENED = "-D_FORTIFY_SOURCE=3 -fstack-protector-strong -fcf-protection -Wl,-z,now"


def test_with_the_defaults_of_a_hardened_compiler(tmp_path: Path) -> None:
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++")
    tools = tmp_path / "bin"
    tools.mkdir()
    wrapper = tools / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {real} {HARDENED} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "double.cuh").write_text(SOURCE)
    # The compiler's first line of version is in the cache's key; another folder makes it build.
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
