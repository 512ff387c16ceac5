"""Kernels of this process, and torch's devices and streams as a launch wants them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future

import torch
from torch import Tensor

from attnhub.core.check import dtype_name
from attnhub.core.device import Device, describe
from attnhub.core.env import environment
from attnhub.errors import InvalidArgument
from attnhub.jit import Cache, KernelSpec, LoadedKernel, TensorMap, compile_kernels

#: The folder of AttnHub's own headers, for ``KernelSpec.include_dirs``.
INCLUDE_DIR = "attnhub:include"

#: The first compute capability whose own instructions (wgmma, setmaxnreg) need the suffix "a".
_FIRST_WITH_SUFFIX = 90

#: A compilation that takes longer is worth a line on a terminal.
_PATIENCE_SECONDS = 0.5

_lock = threading.Lock()
_loaded: dict[KernelSpec, Future[LoadedKernel]] = {}


def kernel(spec: KernelSpec) -> LoadedKernel:
    """The loaded kernel of a spec: compiled or taken from the cache once in this process.

    Raises:
        NoCompiler, CompileError: it is not in the cache, and there is no compiler or it fails.
        DriverError: there is no driver, or it refuses the kernel.
    """
    found = _loaded.get(spec)
    if found is not None:
        with contextlib.suppress(CancelledError):
            return found.result()
    return kernels([spec])[0]


def kernels(specs: Sequence[KernelSpec]) -> list[LoadedKernel]:
    """Several at once, as :func:`kernel`; those that are not there yet compile in parallel.

    Threads that ask for the same kernel wait for the one that asked first.
    """
    while True:
        with _lock:
            missing = [spec for spec in dict.fromkeys(specs) if spec not in _loaded]
            _loaded.update({spec: Future() for spec in missing})
            wanted = [_loaded[spec] for spec in specs]
        if missing:
            _load(missing)
        with contextlib.suppress(CancelledError):  # whoever made one was interrupted: our turn
            return [future.result() for future in wanted]


def _load(specs: list[KernelSpec]) -> None:
    """Settle the futures of these specs; whoever asks after a failure tries anew."""
    waiting = {spec: _loaded[spec] for spec in specs}
    try:
        with _notice(specs):
            cubins = compile_kernels(specs, cache=Cache(environment().cache_dir or None))
        for cubin in cubins:
            waiting[cubin.spec].set_result(LoadedKernel(cubin.image, cubin.spec))
    except BaseException as error:
        with _lock:
            for spec, future in waiting.items():
                if not future.done():
                    del _loaded[spec]
                    if isinstance(error, Exception):
                        future.set_exception(error)
                    else:  # KeyboardInterrupt, SystemExit: of this thread and nobody else's
                        future.cancel()
        raise


@contextlib.contextmanager
def _notice(specs: Sequence[KernelSpec]) -> Iterator[None]:
    """Tell a person at a terminal what takes so long."""
    if not sys.stderr.isatty():
        yield
        return
    names = ", ".join(sorted({spec.name for spec in specs}))
    line = f"attnhub: compiling {names} (once; kept for later processes)"
    timer = threading.Timer(_PATIENCE_SECONDS, print, [line], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def arch(device: str | torch.device | Device) -> str:
    """The architecture that a device's kernels are compiled for: ``"sm_80"``, ``"sm_90a"``.

    Raises:
        InvalidArgument: a device that is no GPU.
    """
    found = describe(device)
    if found.sm is None:
        raise InvalidArgument(f"device {found} runs no CUDA kernels: give a GPU, as 'cuda:0'")
    return f"{found.arch}a" if found.sm >= _FIRST_WITH_SUFFIX else found.arch


def _current_stream(device_index: int) -> int:
    stream: int = torch.cuda.current_stream(device_index).cuda_stream
    return stream


#: torch has no public function for the raw handle alone; the private one, which its compiler's code
#: calls too, does not make a Stream object, which would cost as much as the launch.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)  # noqa: SLF001


def stream(device_index: int) -> int:
    """The stream that is current in torch on a device, as a launch takes it."""
    return raw_stream(device_index)


def tensor_map(tensor: Tensor, box: Sequence[int], *, swizzle: int = 128) -> TensorMap:
    """The tensor map of a tensor; ``encode()`` makes what a kernel's parameter takes.

    It holds the tensor's address: keep it as long as the tensor stays where it is.

    Args:
        tensor: 1 to 5 dimensions, the last one contiguous.
        box: the extent of a box in each dimension of the tensor, in its order.
        swizzle: bytes that the swizzle spans, 32, 64 or 128; 0 for none.
    """
    size = tensor.element_size()
    return TensorMap(
        address=tensor.data_ptr(),
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        strides=tuple(stride * size for stride in tensor.stride()),
        box=tuple(box),
        swizzle=swizzle,
    )
