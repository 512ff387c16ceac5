"""The wheels that torch brings are enough: no PATH, no CUDA_HOME, no toolkit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.jit.compilers import locate
from tests.unit.repo_tree import ROOT

# Compiles a kernel and fails to compile another one, with the wheels in argv[1] and nothing else.
_SCRIPT = """
import dataclasses, sys
from pathlib import Path
from attnhub.jit import Cache, CompileError, compile_kernels, discover
from attnhub.jit.compilers import locate
from tests.jit.fakes import Scale, spec

site = Path(sys.argv[1])
locate.package_folders = lambda name: [site / name] if (site / name).is_dir() else []
locate._TOOLKIT, sys.prefix = Path("no/toolkit"), "no/prefix"
cache = Cache(site / "cache")
[cubin] = compile_kernels([spec(arch="sm_90a")], cache=cache)
bad = dataclasses.replace(spec(), context=Scale(dtype="missing"))
try:
    compile_kernels([bad], cache=cache)
except CompileError as error:
    print(error.error.splitlines()[0])
print(cubin.image[:4], discover()[0].path, discover()[0].headers, discover()[0].version, sep="\\n")
"""


def _real() -> Iterator[Path]:
    for folder in locate.package_folders("nvidia"):
        yield from (p.parent.parent for p in folder.glob("cu*/lib/libnvrtc.so.*"))


@pytest.mark.parametrize(
    ("lib", "include"),
    [
        pytest.param("cu13/lib", "cu13/include", id="CUDA 13: one folder"),
        pytest.param("cuda_nvrtc/lib", "cuda_runtime/include", id="CUDA 12: one for each part"),
    ],
)
def test_layouts_of_wheels(lib: str, include: str, tmp_path: Path) -> None:
    root = next(_real(), None)
    if root is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    nvidia = tmp_path / "nvidia"
    (nvidia / lib).mkdir(parents=True)
    (nvidia / include).parent.mkdir(exist_ok=True)
    for file in (root / "lib").glob("libnvrtc*"):
        (nvidia / lib / file.name).symlink_to(file)
    (nvidia / include).symlink_to(root / "include", target_is_directory=True)
    kept = {"HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)],
        cwd=ROOT,
        env={name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ} | kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    error, magic, library, headers, version = done.stdout.splitlines()
    assert 'identifier "missing" is undefined' in error
    assert magic == repr(b"\x7fELF")
    assert Path(library).parent == nvidia / lib
    assert Path(headers) == nvidia / include
    assert version.split(".")[0].isdigit()
