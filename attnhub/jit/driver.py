"""libcuda through ctypes: it comes with every NVIDIA driver, so nothing is linked or installed.

Only what loads and launches kernels is here. Whatever the driver refuses is a DriverError.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from enum import IntEnum
from typing import Any

from attnhub.jit.errors import DriverError

_LIBRARY = "libcuda.so.1"

#: Result of a call that needs a context, in a thread that has none.
INVALID_CONTEXT = 201

#: What to do about results that users meet.
_HINTS = {
    2: "free device memory first",
    3: "CUDA does not survive a fork: start processes by spawn",
    34: "this is a toolkit's stub: have the library path name the driver's own libcuda.so.1 first",
    100: "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    101: "give the index of a device that is here, from 0",
    200: "the driver may be older than the compiler: update it, or use the NVRTC that torch brings",
    209: "the kernel is made for another architecture; give its spec the arch() of the device",
    222: "the driver is older than the compiler: update it, or use the NVRTC that torch brings",
    500: 'the kernel has no such extern "C" symbol: compare the entry of its spec and its template',
    700: "a kernel before this one went wrong; run with CUDA_LAUNCH_BLOCKING=1 to see which",
    701: "block × registers is more than an SM has: use fewer threads",
    716: "a kernel before this one went wrong; run with CUDA_LAUNCH_BLOCKING=1 to see which",
    719: "a kernel before this one went wrong; run with CUDA_LAUNCH_BLOCKING=1 to see which",
    803: "the driver was updated while its old module is loaded: restart the machine",
    900: "the stream is being captured: load and warm up kernels before",
}


class FunctionAttribute(IntEnum):
    """Attributes of a kernel on a device (``CUfunction_attribute``)."""

    MAX_THREADS = 0
    STATIC_SMEM = 1
    MAX_DYNAMIC_SMEM = 8
    NON_PORTABLE_CLUSTER = 14


class DeviceAttribute(IntEnum):
    """Attributes of a device (``CUdevice_attribute``)."""

    MAX_SMEM = 97


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: an id, and a value of which the first words are used."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", ctypes.c_uint * 16))

    CLUSTER_DIMENSION = 4
    PROGRAMMATIC_STREAM_SERIALIZATION = 6


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Driver:
    """The driver of this machine, initialised.

    Raises:
        DriverError: there is none, or it finds no device.
    """

    def __init__(self, library: str) -> None:
        self.version = 0
        try:
            self._functions = ctypes.CDLL(library)
            # PyDLL keeps the interpreter's lock. A launch takes about as long as giving the lock up
            # and getting it back, and a busy thread that took it meanwhile would keep it for 5 ms.
            short = ctypes.PyDLL(library)
        except OSError as error:
            raise DriverError(
                f"no NVIDIA driver: {error}; kernels run on a machine with an NVIDIA GPU and its "
                "driver, or, for tests, in attnhub.testing.emulator"
            ) from error
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()
        self.version = self._number("cuDriverGetVersion")
        self.call("cuInit", 0)
        self.num_devices = self._number("cuDeviceGetCount")
        self.launch = self._function("cuLaunchKernelEx", short)
        self._ask_device = self._function("cuCtxGetDevice", short)

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Call a function of libcuda; ``about`` is what it is done for.

        Raises:
            DriverError: it returns anything but CUDA_SUCCESS, or the driver lacks it.
        """
        status = self._function(name)(*arguments)
        if status:
            raise self.error(name, status, about)

    def error(self, call: str, status: int, about: str = "") -> DriverError:
        """The exception for a call that returned ``status``."""
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            self._function(function)(status, byref(text))
            words.append((text.value or b"").decode(errors="replace"))
        name, text_of_name = words[0] or f"CUDA error {status}", words[1] or "unknown to the driver"
        told = f"{call} failed{f' for {about}' if about else ''}: {name} ({text_of_name})"
        hint = _HINTS.get(status, "")
        return DriverError(f"{told}; {hint}" if hint else told, call=call, status=status, name=name)

    def _function(self, name: str, functions: ctypes.CDLL | None = None) -> Any:
        try:
            return getattr(functions or self._functions, name)
        except AttributeError as error:
            major, minor = divmod(self.version, 1000)
            raise DriverError(
                f"the driver is one of CUDA {major}.{minor // 10} and has no {name}; AttnHub needs "
                "one of CUDA 12.0 or newer (525.60): update the driver",
                call=name,
            ) from error

    def _number(self, name: str, *arguments: Any, about: str = "") -> int:
        """What a function writes through its first parameter, an int."""
        found = c_int()
        self.call(name, byref(found), *arguments, about=about)
        return found.value

    def _handle(self, name: str, *arguments: Any, about: str = "") -> int:
        """What a function writes through its first parameter, a handle."""
        found = c_void_p()
        self.call(name, byref(found), *arguments, about=about)
        return found.value or 0

    def load(self, image: bytes, about: str) -> int:
        """The library of a cubin. It stays loaded: a CUDA graph may outlive every Python object."""
        return self._handle("cuLibraryLoadData", image, None, None, 0, None, None, 0, about=about)

    def kernel(self, library: int, entry: str, about: str) -> int:
        """The kernel of a library under a symbol."""
        return self._handle("cuLibraryGetKernel", c_void_p(library), entry.encode(), about=about)

    def load_into_context(self, kernel: int, about: str) -> None:
        """Have the current context load a kernel now, as it could not while a graph is captured."""
        self._handle("cuKernelGetFunction", c_void_p(kernel), about=about)

    def parameter_size(self, kernel: int) -> int | None:
        """The size of the first parameter; None where the driver does not tell.

        It cannot before CUDA 12.4, and may refuse, not only where there is no such parameter. It is
        not asked for a second one, since compute-sanitizer would report the error.
        """
        if not hasattr(self._functions, "cuKernelGetParamInfo"):
            return None
        offset, size = c_size_t(), c_size_t()
        ask = self._functions.cuKernelGetParamInfo
        status = ask(c_void_p(kernel), c_size_t(0), byref(offset), byref(size))
        return None if status else size.value

    def attribute(self, attribute: FunctionAttribute, kernel: int, device: int, about: str) -> int:
        """An attribute of a kernel on a device."""
        arguments = (attribute.value, c_void_p(kernel), device)
        return self._number("cuKernelGetAttribute", *arguments, about=about)

    def set_attribute(
        self, attribute: FunctionAttribute, value: int, kernel: int, device: int, about: str
    ) -> None:
        """Set an attribute of a kernel on a device."""
        arguments = (attribute.value, value, c_void_p(kernel), device)
        self.call("cuKernelSetAttribute", *arguments, about=about)

    def device_attribute(self, attribute: DeviceAttribute, device: int) -> int:
        """An attribute of a device."""
        return self._number("cuDeviceGetAttribute", attribute.value, device)

    def ctas_per_sm(self, kernel: int, block: int, smem: int, about: str) -> int:
        """How many CTAs of a kernel an SM of the current context's device holds at once."""
        arguments = (c_void_p(kernel), block, c_size_t(smem))
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self._number(name, *arguments, about=about)

    def is_current(self, device: int) -> bool:
        """Whether this thread's context is of a device."""
        found = c_int(-1)
        self._ask_device(byref(found))
        return found.value == device

    @contextlib.contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Have the primary context of a device, which torch uses too, be this thread's."""
        with self._lock:
            if device not in self._contexts:
                context = self._handle("cuDevicePrimaryCtxRetain", device, about=f"cuda:{device}")
                self._contexts[device] = context
        self.call("cuCtxPushCurrent_v2", c_void_p(self._contexts[device]))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", byref(c_void_p()))


@functools.cache
def get() -> Driver:
    """The driver, initialised once a process."""
    return Driver(_LIBRARY)
