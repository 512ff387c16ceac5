"""The ways to launch a kernel of twelve parameters that are compared, each as a call to time."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from attnhub.jit import Cubin, Launcher
from attnhub.plugin import KernelSpec, LoadedKernel, ParamLayout, stream

HERE = Path(__file__).parent
_FOLDER = tempfile.TemporaryDirectory(prefix="attnhub-bench-")  # goes with the process
BLOCK, DEVICE = 32, 0
Call = Callable[[], object]

TWELVE = ParamLayout(
    dict.fromkeys(("p0", "p1", "p2", "p3", "p4", "p5"), "float*")
    | dict.fromkeys(("n0", "n1", "n2", "n3"), "int")
    | dict.fromkeys(("f0", "f1"), "float")
)


class Missing(Exception):
    """Why a candidate cannot be measured here."""


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The context of a template that needs none."""


def spec(arch: str) -> KernelSpec:
    """The kernel, in both forms."""
    package = "benchmarks.launcher"
    return KernelSpec(
        name="twelve",
        template=f"{package}:twelve.cu.jinja",
        context=_Nothing(),
        entry="twelve",
        params=TWELVE,
        arch=arch,
        include_dirs=(f"{package}:",),
    )


class Bench:
    """What every candidate launches: kernel, stream and values."""

    def __init__(self, cubin: Cubin) -> None:
        self.image = cubin.image
        self._kernel = LoadedKernel(cubin.image, cubin.spec)
        self.launcher: Launcher = self._kernel.launcher(DEVICE, block=BLOCK)
        self._memory = torch.zeros(64, device=f"cuda:{DEVICE}")
        pointers = [self._memory.data_ptr() + 4 * i for i in range(6)]
        self.values = (*pointers, 1, 2, 3, 4, 0.5, 0.25)
        self.stream = stream(DEVICE)
        self.launcher(1, self.stream, *self.values)
        # What the launcher hands to the driver: to call it with that again is the floor.
        self.arguments = self.launcher._arguments  # noqa: SLF001 - measured from inside
        self.bare = self.launcher._launch  # noqa: SLF001

    def prepared(self) -> tuple[int, int]:
        """The addresses of the launch config and of the kernel, for launchers in C."""
        buffer = self.arguments[0]._obj  # noqa: SLF001
        config = ctypes.addressof(buffer) + TWELVE.size
        return config, self._kernel._handle  # noqa: SLF001


def floor(bench: Bench) -> Call:
    """The driver's call alone."""
    return partial(bench.bare, *bench.arguments)


def floor_without_lock(bench: Bench) -> Call:
    """The same, giving up the interpreter's lock during the call."""
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    return partial(launch, *bench.arguments)


def attnhub(bench: Bench) -> Call:
    """The launcher."""
    launch, raw, values = bench.launcher, bench.stream, bench.values
    return lambda: launch(1, raw, *values)


def attnhub_with_stream(bench: Bench) -> Call:
    """The launcher, and torch's current stream looked up each time, as plans do."""
    launch, values = bench.launcher, bench.values
    return lambda: launch(1, stream(DEVICE), *values)


def cuda_bindings(bench: Bench) -> Call:
    """NVIDIA's bindings, one parameter for each value."""
    _needs("cuda.bindings")
    from cuda.bindings import driver as cuda

    def checked(result: tuple[object, ...]) -> object:
        if result[0] != cuda.CUresult.CUDA_SUCCESS:
            raise Missing(f"it returned {result[0]}")
        return result[-1]

    library = checked(cuda.cuLibraryLoadData(bench.image, [], [], 0, [], [], 0))
    kernel = cuda.CUfunction(int(checked(cuda.cuLibraryGetKernel(library, b"separate"))))
    config = cuda.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = BLOCK, 1, 1
    config.hStream = cuda.CUstream(bench.stream)
    types = (ctypes.c_void_p,) * 6 + (ctypes.c_int,) * 4 + (ctypes.c_float,) * 2
    values = bench.values
    checked(cuda.cuLaunchKernelEx(config, kernel, (values, types), 0))
    return lambda: cuda.cuLaunchKernelEx(config, kernel, (values, types), 0)


def cuda_core(bench: Bench) -> Call:
    """NVIDIA's pythonic layer, its arguments converted in advance."""
    _needs("cuda.core")
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:
        from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch
    device = Device(DEVICE)
    device.set_current()
    queue = device.create_stream()
    kernel = ObjectCode.from_cubin(bench.image).get_kernel("separate")
    config = LaunchConfig(grid=1, block=BLOCK)
    numbers = [*map(ctypes.c_int, bench.values[6:10]), *map(ctypes.c_float, bench.values[10:])]
    arguments = (*bench.values[:6], *numbers)
    return lambda: launch(queue, config, kernel, *arguments)


def torch_add(bench: Bench) -> Call:
    """A tiny operator of torch, for scale."""
    x = torch.zeros(1, device=f"cuda:{DEVICE}")
    return lambda: x.add_(1)


def c_extension(bench: Bench) -> Call:
    """A small extension of CPython: what a compiler at installation would buy."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        raise Missing(f"no Python.h in {include}")
    library = _compile("extension.cc", [f"-I{include}"])
    found = importlib.util.spec_from_file_location("launch_extension", library)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return _compiled(bench, module.launch)


def tvm_ffi(bench: Bench) -> Call:
    """The same through apache-tvm-ffi."""
    _needs("tvm_ffi")
    import tvm_ffi
    from tvm_ffi import libinfo

    options = [f"-I{folder}" for folder in libinfo.include_paths()]
    runtime = Path(libinfo.find_libtvm_ffi())
    options += [str(runtime), f"-Wl,-rpath,{runtime.parent}"]
    module = tvm_ffi.load_module(str(_compile("tvm_ffi_extension.cc", options)))
    return _compiled(bench, module.launch)


def _compiled(bench: Bench, function: Callable[..., object]) -> Call:
    config, kernel = bench.prepared()
    raw, values = bench.stream, bench.values
    return lambda: function(config, kernel, 1, raw, *values)


def _needs(module: str) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        found = None
    if found is None:
        raise Missing(f"{module} is not installed")


def _compile(source: str, options: list[str]) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        raise Missing("no g++ here")
    library = Path(_FOLDER.name) / f"{source}.so"
    command = [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", str(HERE / source)]
    done = subprocess.run(
        [*command, *options, "-ldl", "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Missing(f"{source} does not compile: {done.stderr.strip().splitlines()[-1]}")
    return library


#: The name of each candidate, and what makes it; the first is what all others are compared with.
CANDIDATES: dict[str, Callable[[Bench], Call]] = {
    "driver call alone (ctypes, lock kept)": floor,
    "driver call alone (ctypes, lock given up)": floor_without_lock,
    "attnhub": attnhub,
    "attnhub and torch's current stream": attnhub_with_stream,
    "C extension": c_extension,
    "tvm-ffi": tvm_ffi,
    "cuda-bindings": cuda_bindings,
    "cuda-core": cuda_core,
    "torch add_": torch_add,
}
