"""One launcher for every kernel: a struct of parameters, a grid, a stream.

A launch has to cost little more than the driver's own work, so all that can be done once is done
when a launcher is made: one buffer holds the parameters and, behind them, the driver's launch
config, one precompiled ``struct.Struct`` fills both, and ctypes gets the same prepared arguments
each time. docs/decisions/0005-launcher.md has the alternatives and the figures.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

from attnhub.errors import AttnHubError, InvalidArgument
from attnhub.jit import driver as drivers
from attnhub.jit.driver import (
    INVALID_CONTEXT,
    DeviceAttribute,
    Driver,
    FunctionAttribute,
    LaunchAttribute,
    LaunchConfig,
)
from attnhub.jit.errors import LaunchError
from attnhub.jit.params import TENSOR_MAP_ALIGNMENT
from attnhub.jit.spec import EntryPoint, KernelSpec

#: CTAs of a cluster that every device with clusters can run; more must be allowed first.
_PORTABLE_CLUSTER, _MAX_CLUSTER = 8, 16
_MAX_GRID = (2**31 - 1, 65535, 65535)


class Shape(NamedTuple):
    """All of a launch that does not change from one to the next."""

    device: int
    block: int
    smem: int
    cluster: int
    pdl: bool


class LoadedKernel:
    """A kernel that the driver has loaded, for every device.

    Args:
        image: its cubin.
        spec: what it was compiled from; of a kernel that others compiled, what it takes.

    Raises:
        DriverError: there is no driver, or it refuses the cubin.

    Example:
        >>> kernel = LoadedKernel(cubin.image, cubin.spec)
        >>> launch = kernel.launcher(0, block=256, smem=65536)
        >>> launch(132, stream, x.data_ptr(), y.data_ptr(), n)
    """

    def __init__(self, image: bytes, spec: KernelSpec | EntryPoint) -> None:
        self.spec = spec
        self._driver = drivers.get()
        library = self._driver.load(image, str(spec))
        self._handle = self._driver.kernel(library, spec.entry, str(spec))
        self._launchers: dict[Shape, Launcher] = {}
        self._lock = threading.Lock()

    def launcher(
        self, device: int, *, block: int, smem: int = 0, cluster: int = 1, pdl: bool = False
    ) -> Launcher:
        """What launches the kernel on a device; equal arguments give the same object.

        Args:
            device: the device's index.
            block: threads of a CTA.
            smem: bytes of dynamic shared memory.
            cluster: CTAs of a cluster, neighbours along the first extent of the grid.
            pdl: the kernel may start while the one before it in the stream ends, so it must call
                ``grid_wait()`` before it reads what that one writes.

        Raises:
            LaunchError: more than the device or the kernel allows, or the kernel does not take the
                one struct that ``spec.params`` describes.
            DriverError: the device cannot run the kernel.
        """
        shape = Shape(device, block, smem, cluster, pdl)
        found = self._launchers.get(shape)
        if found is None:
            with self._lock:
                found = self._launchers.get(shape) or self._prepare(shape)
                self._launchers[shape] = found
        return found

    def ctas_per_sm(self, device: int, *, block: int, smem: int = 0) -> int:
        """How many CTAs of the kernel an SM of a device holds at once."""
        self.launcher(device, block=block, smem=smem)  # allows that much shared memory
        with self._driver.current(device):
            return self._driver.ctas_per_sm(self._handle, block, smem, str(self.spec))

    def _prepare(self, shape: Shape) -> Launcher:
        about = f"{self.spec} on cuda:{shape.device}"
        with self._driver.current(shape.device):
            # Now and not at the first launch, which may be while a graph is captured.
            self._driver.load_into_context(self._handle, about)
            self._check_parameter()
            self._check_block(shape, about)
            self._allow_smem(shape, about)
            self._allow_cluster(shape, about)
        return Launcher(self._driver, self._handle, self.spec, shape)

    def _attribute(self, attribute: FunctionAttribute, shape: Shape, about: str) -> int:
        return self._driver.attribute(attribute, self._handle, shape.device, about)

    def _allow(self, attribute: FunctionAttribute, value: int, shape: Shape, about: str) -> None:
        self._driver.set_attribute(attribute, value, self._handle, shape.device, about)

    def _check_parameter(self) -> None:
        """Here, and not in the constructor: without a context the driver may not tell the size."""
        if not self.spec.takes_struct:
            return
        size, described = self._driver.parameter_size(self._handle), self.spec.params.size
        if size not in (None, described):
            raise LaunchError(
                f"{self.spec} takes a parameter of {size} bytes, but its spec describes a struct "
                f"of {described}: make `params` list the members of its struct, in order"
            )

    def _check_block(self, shape: Shape, about: str) -> None:
        most = self._attribute(FunctionAttribute.MAX_THREADS, shape, about)
        if not 1 <= shape.block <= most:
            raise LaunchError(
                f"block={shape.block}: {about} takes 1 to {most} threads, by its registers and "
                "__launch_bounds__"
            )

    def _allow_smem(self, shape: Shape, about: str) -> None:
        static = self._attribute(FunctionAttribute.STATIC_SMEM, shape, about)
        most = self._driver.device_attribute(DeviceAttribute.MAX_SMEM, shape.device)
        if not 0 <= shape.smem <= most - static:
            raise LaunchError(
                f"smem={shape.smem}: {about} has {static} bytes of static shared memory, and a CTA "
                f"at most {most} in all; give 0 to {most - static}"
            )
        # The driver keeps the limit for each device. It is only ever raised, so that launchers with
        # different needs do not undo each other.
        limit = FunctionAttribute.MAX_DYNAMIC_SMEM
        if shape.smem > self._attribute(limit, shape, about):
            self._allow(limit, shape.smem, shape, about)

    def _allow_cluster(self, shape: Shape, about: str) -> None:
        if not 1 <= shape.cluster <= _MAX_CLUSTER:
            raise LaunchError(f"cluster={shape.cluster}: {about} takes 1 to {_MAX_CLUSTER} CTAs")
        if shape.cluster > _PORTABLE_CLUSTER:
            self._allow(FunctionAttribute.NON_PORTABLE_CLUSTER, 1, shape, about)


class Launcher:
    """Launches a kernel on one device with one shape of CTA; made by ``LoadedKernel.launcher``.

    Threads may share it: the driver copies the parameters during the call, and until then a lock
    keeps others from the buffer.
    """

    __slots__ = (
        "_arguments", "_attributes", "_bound", "_buffer", "_driver", "_kernel", "_launch", "_lock",
        "_middle", "_num_given", "_pack", "_several", "_shape", "_spec",
    )  # fmt: skip

    def __init__(
        self,
        driver: Driver,
        kernel: int,
        spec: KernelSpec | EntryPoint,
        shape: Shape,
        bound: Sequence[Any] = (),
    ) -> None:
        self._driver, self._kernel, self._spec, self._shape = driver, kernel, spec, shape
        self._num_given = len(spec.params.fields) - len(bound)
        self._launch, self._lock = driver.launch, threading.Lock()
        # The null stream is the current context's, which on a machine with several devices may be
        # another device's. Every other stream knows where it belongs.
        self._several = driver.num_devices > 1
        self._attributes = _attributes(shape)
        config = LaunchConfig(
            block=(shape.block, 1, 1),
            smem=shape.smem,
            attributes=self._attributes,
            num_attributes=len(self._attributes),
        )
        end = -(-spec.params.size // 8) * 8  # of the parameters; there the config begins
        self._buffer = _aligned(end + ctypes.sizeof(config))
        ctypes.memmove(byref(self._buffer, end), byref(config), ctypes.sizeof(config))
        # Of the config, grid and stream change. What lies between them is written along with them,
        # as one piece; what follows the stream stays as it is.
        self._middle = bytes(config)[LaunchConfig.block.offset : LaunchConfig.stream.offset]
        given = spec.params.format(self._num_given)
        self._bound = self._pack_bound(bound, struct.calcsize(given))
        padding = f"{end - spec.params.size}x"
        pack = struct.Struct(f"{given}{len(self._bound)}s{padding}3I{len(self._middle)}sQ")
        flags = [field.kind == "bool" for field in spec.params.fields[: self._num_given]]
        self._pack = _with_flags(pack, flags) if any(flags) else pack.pack_into
        begin = ctypes.addressof(self._buffer)
        places = [0] if spec.takes_struct else [field.offset for field in spec.params.fields]
        pointers = (c_void_p * len(places))(*(begin + place for place in places))
        config_at = byref(self._buffer, end)
        self._arguments = (config_at, c_void_p.from_param(kernel), byref(pointers), None)

    def _pack_bound(self, values: Sequence[Any], begin: int) -> bytes:
        """The bytes of the last fields, which begin there."""
        params = self._spec.params
        if told := params.misfit(values, max(self._num_given, 0)):
            raise LaunchError(f"{self._spec}: {told}")
        zeros = [b"" if field.is_tensor_map else 0 for field in params.fields[: self._num_given]]
        return struct.pack(params.format(), *zeros, *values)[begin:]

    def bind(self, *last: Any) -> Launcher:
        """The same launch, with the values of the last fields given now.

        What is packed once does not cost time at each launch: order the members of a struct so that
        those that change from run to run come first.

        Example:
            >>> step = launch.bind(*work.schedule(0), *section.values())
            >>> step(132, stream, q.data_ptr(), k.data_ptr(), out.data_ptr())

        Raises:
            LaunchError: more values than fields, or one that does not fit.
        """
        return Launcher(self._driver, self._kernel, self._spec, self._shape, last)

    def __call__(self, grid: int | tuple[int, int, int], stream: int, *values: Any) -> None:
        """Launch.

        Args:
            grid: CTAs along each dimension; an int stands for ``(n, 1, 1)``.
            stream: the raw stream; 0 is the default one.
            values: one for each field of ``spec.params`` that is not bound, in its order: pointers
                as ints, numbers, tensor maps as 128 bytes.

        Raises:
            InvalidArgument: not one value for each field, or one that does not fit.
            DriverError: the driver refuses the launch.
        """
        try:
            x, y, z = grid if isinstance(grid, tuple) else (grid, 1, 1)
            with self._lock:
                self._pack(self._buffer, 0, *values, self._bound, x, y, z, self._middle, stream)
                if self._several and not stream and not self._driver.is_current(self._shape.device):
                    status = INVALID_CONTEXT
                else:
                    status = self._launch(*self._arguments)
                if status == INVALID_CONTEXT:  # or in a thread that has not touched CUDA yet
                    with self._driver.current(self._shape.device):
                        status = self._launch(*self._arguments)
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            told = self._spec.params.misfit(values, 0, self._num_given)
            told = told or f"grid={grid}, stream={stream}: {error}"
            raise InvalidArgument(f"{self._spec}: {told}") from error
        if status:
            raise self._failure(status, (x, y, z))

    def _failure(self, status: int, grid: tuple[int, int, int]) -> AttnHubError:
        """What a launch that was refused raises: the driver only says that a value is invalid."""
        about = f"{self._spec} with grid={grid}, {self._shape}"
        if any(not 1 <= n <= most for n, most in zip(grid, _MAX_GRID, strict=True)):
            return InvalidArgument(f"{about}: the extents of a grid are 1 to {_MAX_GRID}")
        if grid[0] % self._shape.cluster:
            return InvalidArgument(f"{about}: grid[0] must be a multiple of cluster")
        return self._driver.error("cuLaunchKernelEx", status, about)


def _with_flags(pack: struct.Struct, flags: Sequence[bool]) -> Callable[..., None]:
    """``pack_into``, which would turn any object into a bool, and so wait for a tensor's device."""

    def pack_into(buffer: Any, offset: int, *values: Any) -> None:
        for value in itertools.compress(values, flags):
            if not isinstance(value, int):
                raise TypeError("no bool")
        pack.pack_into(buffer, offset, *values)

    return pack_into


def _attributes(shape: Shape) -> ctypes.Array[LaunchAttribute]:
    """The launch attributes that a shape needs."""
    found = []
    if shape.cluster > 1:
        cluster = (shape.cluster, 1, 1)
        found.append(LaunchAttribute(id=LaunchAttribute.CLUSTER_DIMENSION, value=cluster))
    if shape.pdl:
        overlap = LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION
        found.append(LaunchAttribute(id=overlap, value=(1,)))
    return (LaunchAttribute * len(found))(*found)


def _aligned(size: int) -> ctypes.Array[ctypes.c_char]:
    """A buffer aligned as a struct with a tensor map is."""
    room = ctypes.create_string_buffer(size + TENSOR_MAP_ALIGNMENT)
    begin = -ctypes.addressof(room) % TENSOR_MAP_ALIGNMENT
    return (ctypes.c_char * size).from_buffer(room, begin)
