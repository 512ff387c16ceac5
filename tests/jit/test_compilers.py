"""The real compilers: found where they lie, and their cubins and errors. No GPU is needed."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnhub.errors import UnknownName
from attnhub.jit import compilers
from attnhub.jit.build import compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Compiler, locate, nvcc
from attnhub.jit.compilers.log import first_error
from attnhub.jit.errors import CompileError, NoCompiler
from tests.jit.fakes import Scale, spec

ARCHS = {"sm_80": 80, "sm_89": 89, "sm_90a": 90}


@pytest.fixture
def search() -> Iterator[None]:
    """Look for compilers anew, in this test and after it."""
    compilers._search.cache_clear()
    yield
    compilers._search.cache_clear()


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    finding = {f.name: f for f in compilers.discover()}[request.param]
    if finding.compiler is None:
        pytest.skip(finding.why)
    return finding.compiler


def test_tiny_kernels_compile(compiler: Compiler, cache: Cache) -> None:
    context = Scale(dtype="__nv_bfloat16", unroll=4, factor=0.5, uses_bf16=True)
    flags = ("--use_fast_math", "--fmad=false", "--maxrregcount=64", "--define-macro=SPARE=1")
    kernels = [dataclasses.replace(spec(arch=a, flags=flags), context=context) for a in ARCHS]
    made = compile_kernels(kernels, cache=cache, compiler=compiler)
    for cubin in made:
        assert not cubin.cached
        assert cubin.image[:4] == b"\x7fELF"
        # e_flags of the ELF header; CUDA 12 and 13 keep the architecture in other bytes of it.
        assert ARCHS[cubin.spec.arch] in cubin.image[48:52]
        assert b"scale" in cubin.image
    logs = [(entry.folder / "build.log").read_text() for entry in cache.entries()]
    assert len(logs) == len(ARCHS)
    assert all("Used" in log and "0 bytes spill stores" in log for log in logs)
    assert all(c.cached for c in compile_kernels(kernels, cache=cache, compiler=compiler))


def test_paths_need_no_care(compiler: Compiler, tmp_path: Path) -> None:
    """With what ninja and the shell would read otherwise. A dollar is beyond nvcc itself."""
    cache = Cache(tmp_path / "one: 'odd' & name")
    [cubin] = compile_kernels([spec()], cache=cache, compiler=compiler)
    assert cubin.image[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param("  int x = missing;\n", 'identifier "missing" is undefined', id="front end"),
        pytest.param('  asm volatile("bogus;");\n', "bogus", id="ptxas"),
        pytest.param("#include <no/such.h>\n", "no/such.h", id="a header that is not there"),
    ],
)
def test_first_real_error(
    compiler: Compiler, cache: Cache, demo_copy: Path, body: str, error: str
) -> None:
    template = demo_copy / "templates/scale.cu.jinja"
    template.write_text(f'extern "C" __global__ void scale() {{\n  int unused;\n{body}}}\n')
    good = dataclasses.replace(spec(), name="good")
    with pytest.raises(CompileError) as raised:
        compile_kernels([spec(package="demo_copy"), good], cache=cache, compiler=compiler)
    shown = raised.value.error.splitlines()
    assert error in shown[0]
    assert "warning" not in shown[0]
    assert raised.value.source.is_file()
    assert str(raised.value.source) in raised.value.command
    assert compile_kernels([good], cache=cache, compiler=compiler)[0].cached


@pytest.mark.parametrize(
    ("log", "first"),
    [
        pytest.param("a(3): warning #1: error\na(4): error: x\n", "a(4): error: x", id="EDG"),
        pytest.param("a(1): catastrophic error: n\n", "a(1): catastrophic error: n", id="fatal"),
        pytest.param("ptxas a; error   : X\nptxas fatal : Y\n", "ptxas a; error   : X", id="ptxas"),
        pytest.param("b\nnvcc fatal   : Bad gpu\n", "nvcc fatal   : Bad gpu", id="nvcc"),
        pytest.param("a(3): error #2: x\n y\n ^\nz\n", "a(3): error #2: x\n y\n ^", id="caret"),
        pytest.param("sh: nvcc: not found\n\n", "sh: nvcc: not found", id="no error line"),
        pytest.param("", "the compiler said nothing", id="empty"),
    ],
)
def test_first_error_of_a_log(log: str, first: str) -> None:
    assert first_error(log) == first


def test_neither_compiler(
    search: None, cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(locate, "roots", lambda _: iter([("test", tmp_path)]))
    with pytest.raises(NoCompiler, match="pip install nvidia-cuda-nvrtc") as raised:
        compile_kernels([spec()], cache=cache)
    assert raised.value.reasons.keys() == {"nvrtc", "nvcc"}
    assert "\n" not in str(raised.value)


def test_library_without_headers(
    search: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnvrtc.so.13").write_bytes(b"")
    monkeypatch.setattr(locate, "roots", lambda _: iter([("test", tmp_path)]))
    finding = compilers.discover()[0]
    assert finding.compiler is None
    assert "cuda_fp16.h is not" in finding.why


@pytest.mark.parametrize(
    ("present", "missing"),
    [(["gcc"], "ninja"), (["ninja"], "gcc")],
    ids=["no ninja", "no host compiler"],
)
def test_nvcc_says_what_it_lacks(
    present: list[str],
    missing: str,
    search: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ["nvcc", *present]:
        (tmp_path / name).write_text("#!/bin/sh\necho release 13.0, V13.0.88\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(locate, "package_folders", lambda _: [])
    finding = nvcc.find()
    assert finding.compiler is None
    assert missing in finding.why
    assert (finding.how, finding.path) == ("PATH", str(tmp_path / "nvcc"))


def test_preference(search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {f.name: f.compiler for f in compilers.discover()}
    usable = [name for name, compiler in found.items() if compiler is not None]
    if not usable:
        pytest.skip("no compiler here")
    assert compilers.choose().name == usable[0]
    assert compilers.choose(usable[-1]).name == usable[-1]
    with pytest.raises(UnknownName, match="nvrtc"):
        compilers.choose("nvrtcc")


def test_wheels_need_no_toolkit(
    search: None, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NVRTC's wheel is, nothing else is looked at: no PATH, no toolkit."""
    if not list(nvrtc_wheels()):
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(locate, "_TOOLKIT", None)
    monkeypatch.setattr(nvcc, "find", None)
    [cubin] = compile_kernels([spec()], cache=cache)
    assert compilers.choose().name == "nvrtc"
    assert cubin.image[:4] == b"\x7fELF"


def nvrtc_wheels() -> Iterator[Path]:
    for folder in locate.package_folders("nvidia"):
        yield from folder.glob("*/lib/libnvrtc.so.*")


def test_torch_decides_among_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that runs torch's CUDA may refuse cubins of a newer one."""
    (tmp_path / "torch").mkdir()
    for part in ("cu13", "cu14", "cuda_nvrtc"):
        (tmp_path / "nvidia" / part).mkdir(parents=True)
    monkeypatch.setattr(locate, "package_folders", lambda name: [tmp_path / name])
    for text, first in [
        ("cuda: Optional[str] = '13.0'\n", "cu13"),
        ("cuda = '12.8'\n", "cuda_nvrtc"),
        ("cuda: str | None = '14.1'\n", "cu14"),
    ]:
        (tmp_path / "torch/version.py").write_text(f"__version__ = '2.13'\n{text}hip = None\n")
        how, root = next(locate.roots(""))
        assert (how, root.name) == ("wheel", first)
    assert next(locate.roots("/opt/cuda")) == ("CUDA_HOME", Path("/opt/cuda"))


def test_tools_of_this_machine_are_explained() -> None:
    for finding in compilers.discover():
        assert (finding.compiler is None) == bool(finding.why)
        if finding.compiler is not None:
            assert Path(finding.path).exists()
            assert finding.version
            assert finding.compiler.tag.startswith(f"{finding.name}-")
    if shutil.which("nvcc"):
        assert compilers.discover()[1].path == shutil.which("nvcc")
