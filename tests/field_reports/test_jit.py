"""What a kernel is made of: one instantiation, and nothing of torch or of Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnhub.cli.suites import jit
from attnhub.core.device import named
from attnhub.jit import KernelSpec
from attnhub.jit.fingerprint import headers
from attnhub.kernels import merge
from tests.field_reports.site_folder import python
from tests.jit.fakes import in_process

_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)", re.MULTILINE)

_KEYS = """
from tests.jit.fakes import in_process
print([cubin.key for cubin in in_process({folder!r}, [1.5, 2.5])])
"""


def _every_kernel() -> list[KernelSpec]:
    """Those of AttnHub itself, and those that the plugins here list for models of several kinds."""
    own = merge.specs("sm_90a", "bfloat16", 128)
    return list(dict.fromkeys([*own, *jit.kernels(named("h100")), *jit.kernels(named("a100"))]))


def test_a_kernel_is_one_instantiation() -> None:
    """Minutes of compilation came of sources with dozens; what a variant needs is its own."""
    for spec in _every_kernel():
        assert spec.source().count("__global__") == 1, str(spec)


def _includes(spec: KernelSpec) -> set[str]:
    """Every header that a kernel includes, directly or not, and that is not ours."""
    folders = spec.folders()
    paths = [folders[int(n)] / name for n, name in (h.split("/", 1) for h in _own(spec))]
    texts = [spec.source(), *(path.read_text(encoding="utf-8") for path in paths)]
    names = {name for text in texts for name in _INCLUDE.findall(text)}
    return {name for name in names if not any((folder / name).exists() for folder in folders)}


def _own(spec: KernelSpec) -> list[str]:
    return list(headers(spec.source(), spec.folders()))


def test_a_kernel_includes_nothing_of_torch_or_python() -> None:
    """What it may include comes with every CUDA compiler; the emulator's is for tests on a CPU."""
    for spec in _every_kernel():
        assert _own(spec), str(spec)
        foreign = {n for n in _includes(spec) if not n.startswith("attnhub_emulator/")}
        assert foreign <= {"cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h"}, str(spec)


@pytest.mark.parametrize("cuda", ["12.1", "14.0"])
def test_other_versions_of_torch_take_the_same_cubins(cuda: str, tmp_path: Path) -> None:
    """One wheel of cubins serves them all: torch is in no key, and need not even import."""
    here = [cubin.key for cubin in in_process(str(tmp_path / "here"), [1.5, 2.5])]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('undefined symbol')")
    (tmp_path / "torch/version.py").write_text(f"__version__ = '9.9'\ncuda = {cuda!r}\n")
    assert python(_KEYS.format(folder=str(tmp_path / "there")), tmp_path) == f"{here}\n"
