"""A kernel that runs on the CPU, thread by thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.plugin import KernelSpec, ParamLayout
from attnhub.testing.emulator import errors
from attnhub.testing.emulator.build import build, keep_source, name_sites
from attnhub.testing.emulator.params import Buffer, aligned_copy, pack

# In the order of `enum class Fault` in abi.h.
_FAULTS: tuple[type[errors.EmulatorError] | None, ...] = (
    None,
    errors.EmulatorDeadlock,
    errors.EmulatorTimeout,
    errors.OutOfBounds,
    errors.RaceDetected,
    errors.Misuse,
)


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("is_writable", ctypes.c_int32),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("num_threads", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("smem_bytes", ctypes.c_uint32),
        ("num_resident", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
        ("finds_races", ctypes.c_int32),
        ("num_buffers", ctypes.c_int32),
        ("buffers", ctypes.POINTER(_Buffer)),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("fault", ctypes.c_int32),
        ("num_switches", ctypes.c_uint64),
        ("text", ctypes.c_char * 16384),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a grid runs. ``block`` is a number of threads, as blocks have one dimension here."""

    grid: tuple[int, ...] = (1,)
    block: int
    smem: int = 0
    #: CTAs of a cluster, neighbours along the first extent of the grid.
    cluster: int = 1
    #: CTAs that run at the same time, in whole clusters; the next start, in order, when these end.
    resident: int = 4
    #: 0: threads take turns and run until they wait. Another: a random schedule, always the same.
    seed: int = 0
    timeout_s: float = 60.0
    #: Raise RaceDetected where no barrier orders two accesses to shared memory.
    races: bool = True

    def __post_init__(self) -> None:
        if self.block % 32 or not 0 < self.block <= 1024:
            raise InvalidArgument(f"block={self.block}: give a multiple of 32, at most 1024")
        if not 1 <= len(self.grid) <= 3 or min(self.grid) < 1:
            raise InvalidArgument(f"grid={self.grid}: give one to three numbers above zero")
        if not 0 <= self.smem <= 232_448:
            raise InvalidArgument(f"smem={self.smem}: a CTA has at most 232448 bytes")
        if not 1 <= self.cluster <= 16 or self.grid[0] % self.cluster:
            raise InvalidArgument(
                f"cluster={self.cluster}: give a divisor of grid[0]={self.grid[0]}, at most 16"
            )
        if self.resident < 1:
            raise InvalidArgument(f"resident={self.resident}: at least one CTA must run")


def _config(launch: Launch, buffers: Sequence[Buffer]) -> _Config:
    # ctypes keeps the array alive through the struct.
    array = (_Buffer * len(buffers))(
        *(_Buffer(b.name.encode(), b.begin, b.end, b.is_writable) for b in buffers)
    )
    return _Config(
        grid=(ctypes.c_uint32 * 3)(*launch.grid, *(1,) * (3 - len(launch.grid))),
        num_threads=launch.block,
        cluster=launch.cluster,
        smem_bytes=launch.smem,
        num_resident=launch.resident,
        seed=launch.seed,
        timeout_s=launch.timeout_s,
        finds_races=launch.races,
        num_buffers=len(buffers),
        buffers=array,
    )


class EmulatedKernel:
    """A kernel compiled for the CPU by g++, from the source that nvcc compiles for a GPU.

    Args:
        header: the file with the kernel, as an ``#include`` names it.
        kernel: its name with namespace and template arguments: ``"scale<attnhub::Half>"``.
        params: the layout of the struct that it takes.
        include_dirs: folders to find headers in, besides AttnHub's own.

    Raises:
        BuildFailed: the source does not compile.
        InvalidArgument: ``params`` is not the layout that the compiler sees.
    """

    def __init__(
        self,
        header: str,
        *,
        kernel: str,
        params: ParamLayout,
        include_dirs: Sequence[Path] = (),
    ) -> None:
        self.kernel = kernel
        self._params = params
        names = [field.name for field in params.fields]
        self.library = build(header=header, kernel=kernel, fields=names, include_dirs=include_dirs)
        self._loaded = ctypes.CDLL(str(self.library))
        ours = [*(field.offset for field in params.fields), params.size]
        theirs = list((ctypes.c_uint64 * len(ours)).in_dll(self._loaded, "attnhub_params_layout"))
        if ours != theirs:
            pairs = zip([*names, "the end"], ours, theirs, strict=True)
            name, mine, real = next(pair for pair in pairs if pair[1] != pair[2])
            raise InvalidArgument(
                f"params of {kernel} do not match its source at {name!r}: it is at byte {mine} of "
                f"params, and at byte {real} of the source's struct; list its members in order, "
                "each with its type"
            )

    @classmethod
    def from_spec(cls, spec: KernelSpec) -> EmulatedKernel:
        """The kernel of a spec: what is compiled is the source that GPUs get.

        Raises:
            BuildFailed, InvalidArgument: as the constructor.
        """
        header = keep_source(spec.entry, spec.source())
        return cls(str(header), kernel=spec.entry, params=spec.params, include_dirs=spec.folders())

    def run(self, launch: Launch, **values: Any) -> int:
        """Run the grid to its end; tensors that are not ``const`` hold its results.

        Args:
            launch: grid, block, shared memory and schedule.
            values: one for each member: a CPU tensor or None for a pointer, a TensorMap, a number,
                or a mapping of such for a member that is a struct.

        Returns:
            how often threads took turns, as a measure of work.

        Raises:
            EmulatorDeadlock, EmulatorTimeout, OutOfBounds, RaceDetected, Misuse: what the kernel
                does wrong, first line first; ``dump`` says where its threads stood.
            InvalidArgument: a value does not fit its field.
        """
        data, buffers = pack(self._params, values)
        _owner, params = aligned_copy(data, self._params.alignment)
        report = _Report()
        self._loaded.attnhub_emulate(
            ctypes.c_void_p(params), ctypes.byref(_config(launch, buffers)), ctypes.byref(report)
        )
        fault = _FAULTS[report.fault]
        if fault is not None:
            text = name_sites(report.text.decode(errors="replace"), self.library)
            message, _, dump = text.partition("\n")
            raise fault(f"{self.kernel}: {message}", dump)
        return int(report.num_switches)
