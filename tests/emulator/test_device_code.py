"""The sources that run in the emulator also compile for GPUs, to the instructions they name."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from attnhub.testing.emulator import INCLUDE_DIR

KERNELS = Path(__file__).parent / "kernels"


def _unit(header: str, params: str, *kernels: str) -> str:
    """A source that instantiates kernels of one header."""
    lines = [f"template __global__ void {k}(const __grid_constant__ {params});" for k in kernels]
    return "\n".join([f'#include "{header}"', *lines, ""])


SM80 = {
    "gemm": _unit("gemm_tile.cuh", "gemm::Params", "gemm::gemm_tile<gemm::Wide>"),
    "primitives": _unit(
        "primitives.cuh",
        "primitives::Params",
        "primitives::widths<attnhub::u8>",
        "primitives::widths<attnhub::u16>",
        "primitives::widths<attnhub::Vec<float, 2>>",
        "primitives::widths<attnhub::Vec<float, 4>>",
        "primitives::matrix<1, true>",
        "primitives::hand_over<true>",
    ),
}
SM90 = {
    "hopper": _unit(
        "gemm_hopper.cuh",
        "gemm_hopper::Params",
        "gemm_hopper::gemm<attnhub::Half, false>",
        "gemm_hopper::gemm<attnhub::Bf16, true>",
    ),
    "clusters": _unit(
        "clusters.cuh",
        "clusters::Params",
        "clusters::exchange<clusters::Bug::kNone>",
        "clusters::multicast<clusters::Bug::kNone>",
    ),
    "stmatrix": _unit(
        "primitives.cuh",
        "primitives::Params",
        "primitives::transpose<2, false>",
        "primitives::transpose<2, true>",
        "primitives::transpose<4, false>",
        "primitives::transpose<4, true>",
    ),
}
SOURCES = SM80 | SM90
UNITS = [(name, arch) for name in SM80 for arch in ("sm_80", "sm_90a")]
UNITS += [(name, "sm_90a") for name in SM90]


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    found = list(spec.submodule_search_locations or []) if spec else []
    return Path(found[0]) if found else None


def _nvcc(source: str, arch: str, folder: Path) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    unit, cubin = folder / "unit.cu", folder / "unit.cubin"
    unit.write_text(source)
    command = ["nvcc", "-std=c++17", f"-arch={arch}", "-cubin", f"-I{INCLUDE_DIR}", f"-I{KERNELS}"]
    command += ["-Xptxas", "-warn-spills", str(unit), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr  # ptxas: spills, serialised wgmma
    return cubin


def _nvrtc() -> ctypes.CDLL:
    root = _folder("nvidia")
    libraries = sorted(root.glob("**/libnvrtc*.so.*")) if root else []
    ours = [path for path in libraries if ".alt." not in path.name]
    if len(ours) != 2:
        pytest.skip("the nvidia-cuda-nvrtc wheel is not installed")
    # The compiler looks for its built-ins by name, so they must be loaded before it.
    built_ins, compiler = sorted(ours, key=lambda path: "builtins" not in path.name)
    ctypes.CDLL(str(built_ins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(compiler))


def _sass(cubin: Path) -> Counter[str]:
    """How often each instruction occurs, by its name without modifiers."""
    triton = _folder("triton")
    if triton is None:
        pytest.skip("cuobjdump comes with triton, which is not installed")
    tools = triton / "backends" / "nvidia" / "bin"
    command = [str(tools / "cuobjdump"), "-sass", str(cubin)]
    path = {"PATH": str(tools)}  # cuobjdump calls nvdisasm
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=path).stdout
    return Counter(
        re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", text, re.MULTILINE)
    )


@pytest.mark.parametrize(("name", "arch"), UNITS)
def test_nvcc_compiles(name: str, arch: str, tmp_path: Path) -> None:
    count = _sass(_nvcc(SOURCES[name], arch, tmp_path))
    assert count["LDL"] == count["STL"] == 0, "registers are spilled"
    if name == "gemm":
        # 8 m16 and 16 n8 tiles over 4 warps, 4 steps of K; 4 + 4 loads of 4 matrices a step.
        assert count["HMMA"] == 8 * 16 // 4 * 4
        assert count["LDSM"] == (4 + 4) * 4
        assert count["LDGSTS"] > 0
    elif name == "hopper":
        assert count["HGMMA"] == 2 * 4  # both kernels, 4 steps of K
        assert count["UTMALDG"] == 2 * 2
        assert count["UTMASTG"] == count["USETMAXREG"] / 2 == 2
        assert count["LDSM"] == 4
    elif name == "stmatrix":
        assert count["STSM"] == count["LDSM"] == 4
    elif name == "clusters":
        assert {"UCGABAR", "SYNCS", "UTMALDG", "ACQBULK", "PREEXIT"} <= count.keys()
    else:
        assert {"LDS", "STS", "LDG", "STG", "LDGSTS", "LDSM", "BAR", "SHFL"} <= count.keys()


@pytest.mark.parametrize(("name", "arch"), UNITS)
def test_nvrtc_compiles_without_a_toolkit(name: str, arch: str) -> None:
    nvrtc = _nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), SOURCES[name].encode(), b"unit.cu", 0, None, None
    )
    assert created == 0
    options = [o.encode() for o in (f"-arch={arch}", f"-I{INCLUDE_DIR}", f"-I{KERNELS}")]
    result = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert size.value > 0
