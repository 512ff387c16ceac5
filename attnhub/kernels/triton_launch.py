"""Kernels in Triton: compiled by Triton, launched by AttnHub's launcher.

Triton looks at every argument of every launch, in Python, and hands over to a launcher in C that
asks the driver about each pointer: some twenty microseconds on a server, where the driver's own
call takes two. Here the types of the arguments find a launcher that was made before; what is packed
is what the kernel's PTX says that it takes.
"""

from __future__ import annotations

import importlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.jit import EntryPoint, Launcher, LoadedKernel, ParamLayout
from attnhub.jit.triton_driver import CompilingDriver
from attnhub.kernels.load import stream

__all__ = ["launch_triton"]

Grid = tuple[int] | tuple[int, int] | tuple[int, int, int]

#: Programmatic dependent launch.
_FIRST_WITH_PDL = 90
#: A parameter of an entry in PTX: its type, and whether it is a pointer.
_PARAMETER = re.compile(r"\.param \.([a-z]\d+)( \.ptr)?")
_BLOCK = re.compile(r"\.reqntid (\d+)")
_KINDS = {"u8": "bool", "u32": "i32", "u64": "i64", "f32": "float", "f64": "double"}
#: Behind those of a kernel Triton adds pointers to scratch memory, of which most have none.
_MOST_ADDED = 2
_INT32 = 2**31
_ONES = (1, 1, 1)
#: Held while Triton has our driver.
_compiling = threading.Lock()


class _Known(NamedTuple):
    """How to launch a kernel with arguments of some types: which of their values it takes.

    ``launch`` is None where only Triton can.
    """

    launch: Launcher | None
    takes: tuple[bool, ...]


class _Reader(NamedTuple):
    """What reads arguments of a structure, and the kernels of those that were read before.

    ``kernel`` is held, since it is known by its id.
    """

    kernel: Any
    read: Callable[[tuple[Any, ...]], tuple[tuple[Any, ...], tuple[Any, ...]]]
    known: dict[tuple[Any, ...], _Known]


#: The reader that a kernel was last launched by. Most are launched by one only.
_latest: dict[int, _Reader] = {}


def launch_triton(
    kernel: Any,
    grid: Grid,
    device: torch.device,
    *args: Any,
    pdl: bool = False,
    **constants: Any,
) -> None:
    """Launch a kernel in Triton on the current stream of a device; an empty grid launches nothing.

    What it is compiled for is what Triton itself would: dtypes, pointers and numbers that are
    multiples of 16, numbers that are 1. Neither a C compiler nor Python's headers are needed, as
    they are where Triton itself launches: on GPUs of other vendors, and kernels that need scratch
    memory. Its interpreter launches what it interprets. Hooks for Triton's launches are not called.

    Args:
        kernel: a ``@triton.jit`` function.
        grid: programs along each axis.
        device: where the tensors lie; it need not be the current one.
        args: the arguments that are no compile-time constants, in order and none left out: tensors,
            numbers, None, and tuples of these.
        pdl: the kernel may start while the one before it in the stream ends. It has a constant
            ``PDL``, True on a GPU that can do so, by which it must call
            ``triton.language.extra.cuda.gdc_wait()`` before it touches memory that others write.
        constants: the other arguments, and options of Triton: ``num_warps``, ``num_stages``.

    Raises:
        InvalidArgument: a tensor lies elsewhere.
        DriverError: the driver refuses the kernel or the launch.

    Example:
        >>> launch_triton(copy, (triton.cdiv(n, 1024),), x.device, x, y, n, BLOCK=1024, num_warps=4)
    """
    if 0 in grid:
        return
    if not _is_direct(kernel, device):
        _by_triton(kernel, grid, device, args, constants, pdl=pdl)
        return
    fixed = device.index, pdl, *constants, *constants.values()
    try:
        reader = _latest[id(kernel)]
        values, kinds = reader.read(args)
        found = reader.known[fixed + kinds]
    except (LookupError, AttributeError, TypeError, ValueError):  # arguments of another structure
        reader = _latest[id(kernel)] = _reader(kernel, _structure(args))
        values, kinds = reader.read(args)
        _check_devices(args, device)
        if (known := reader.known.get(fixed + kinds)) is None:
            known = _prepared(kernel, device, args, constants, pdl=pdl)
            reader.known[fixed + kinds] = known
        found = known
    if found.launch is None:
        _by_triton(kernel, grid, device, args, constants, pdl=pdl)
        return
    extents: Any = (*grid, *_ONES[len(grid) :])
    found.launch(extents, stream(device.index), *itertools.compress(values, found.takes))


def _by_triton(
    kernel: Any,
    grid: Grid,
    device: torch.device,
    args: Sequence[Any],
    constants: Mapping[str, Any],
    *,
    pdl: bool,
) -> None:
    more = {"PDL": False} if pdl else {}
    # Triton launches on the current device.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*args, **constants, **more)


def _is_direct(kernel: Any, device: torch.device) -> bool:
    """Whether Triton compiles, and does not interpret, and the driver is CUDA's."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and hasattr(kernel, "device_caches")


def _structure(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What arguments are: tensors, ints, others, and tuples of these."""
    return tuple(_structure(x) if isinstance(x, tuple) else _leaf(x) for x in args)


def _leaf(x: Any) -> str:
    return "tensor" if isinstance(x, Tensor) else "int" if type(x) is int else "other"


#: Of a value x, as text: what is packed, and what Triton compiles another kernel for, at least.
_PACKED = {"tensor": "p{0}", "int": "x{0}", "other": "0 if x{0} is None else x{0}"}
_KIND_OF = {
    "tensor": "x{0}.dtype, x{0}.is_cuda, p{0} & 15 == 0",
    "int": f"2 if x{{0}} == 1 else x{{0}} & 15 == 0, {-_INT32} <= x{{0}} < {_INT32}",
    "other": "type(x{0})",
}


@lru_cache(maxsize=4096)
def _reader(kernel: Any, structure: tuple[Any, ...]) -> _Reader:
    """A function without loops: one over arguments takes longer than the launch.

    Another structure makes it raise, or find types that are not known.
    """
    leaves = [*_flat(structure)]
    numbers = itertools.count()
    pattern = _pattern(structure, numbers)
    lines = [f"{pattern} = args"]
    if ints := [f"type(x{i}) is " for i, leaf in enumerate(leaves) if leaf == "int"]:
        # First: to compare a tensor would wait for its device.
        lines.append(f"if not ({''.join(ints)}int): raise TypeError")
    lines += [f"p{i} = x{i}.data_ptr()" for i, leaf in enumerate(leaves) if leaf == "tensor"]
    packed, kinds = (
        "".join(f"{table[leaf].format(i)}, " for i, leaf in enumerate(leaves))
        for table in (_PACKED, _KIND_OF)
    )
    body = "".join(f"    {line}\n" for line in (*lines, f"return ({packed}), ({kinds})"))
    namespace: dict[str, Any] = {}
    exec(f"def read(args):\n{body}", namespace)  # noqa: S102 - of the tables above
    return _Reader(kernel, namespace["read"], {})


def _flat(structure: tuple[Any, ...]) -> Iterator[str]:
    for part in structure:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part


def _pattern(structure: tuple[Any, ...], numbers: Iterator[int]) -> str:
    """What unpacks arguments of a structure: ``(x0, (x1, x2, ), )``."""
    parts = (
        _pattern(part, numbers) if isinstance(part, tuple) else f"x{next(numbers)}"
        for part in structure
    )
    return f"({''.join(f'{part}, ' for part in parts)})"


def _paths(args: Sequence[Any], above: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where each value that is read lies, among arguments and the tuples in them."""
    for i, x in enumerate(args):
        if isinstance(x, tuple):
            yield from _paths(x, (*above, i))
        else:
            yield (*above, i)


@lru_cache
def _sm(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def _has_pdl(index: int) -> bool:
    return _sm(index) >= _FIRST_WITH_PDL


@contextmanager
def _driver(index: int) -> Iterator[None]:
    """Triton's driver if it is there: to build it takes a C compiler, which compiling does not."""
    runtime = importlib.import_module("triton.runtime.driver").driver
    name = "_active" if "_active" in vars(runtime) else "active"  # the latter until Triton 3.4
    before = vars(runtime)[name]
    if getattr(before, "_obj", before) is not None:
        yield
        return
    with _compiling:
        setattr(runtime, name, CompilingDriver(_sm(index), index, lambda: runtime.default))
        try:
            yield
        finally:
            setattr(runtime, name, before)


def _prepared(
    kernel: Any,
    device: torch.device,
    args: Sequence[Any],
    constants: Mapping[str, Any],
    *,
    pdl: bool,
) -> _Known:
    """Compile for such arguments, and load."""
    overlaps = pdl and _has_pdl(device.index)
    more = {"PDL": overlaps} if pdl else {}
    with torch.cuda.device(device), _driver(device.index):
        made = kernel.warmup(*args, grid=(1,), **constants, **more)
        made = made.result() if hasattr(made, "result") else made
    if made is None or not _is_simple(made.metadata):  # a hook of Triton's may have refused it
        return _Known(None, ())
    fixed = {path if isinstance(path, tuple) else (path,) for path in made.src.constants}
    takes = tuple(path not in fixed for path in _paths(args))
    entry = _entry(made.asm["ptx"], made.metadata.name)
    block = _BLOCK.search(entry)
    found = _PARAMETER.findall(entry)
    kinds = ["void*" if is_pointer else _KINDS.get(kind, "") for kind, is_pointer in found]
    added = len(kinds) - sum(takes)
    if "" in kinds or block is None or not 0 <= added <= _MOST_ADDED:
        return _Known(None, takes)
    name, params = made.metadata.name, ParamLayout({f"{i}": kind for i, kind in enumerate(kinds)})
    loaded = LoadedKernel(made.asm["cubin"], EntryPoint(name=name, entry=name, params=params))
    launch = loaded.launcher(
        device.index,
        block=int(block[1]),
        smem=made.metadata.shared,
        pdl=overlaps,
    )
    return _Known(launch.bind(*[0] * added), takes)


def _is_simple(metadata: Any) -> bool:
    """Whether a launch takes a grid and parameters, and nothing that only Triton prepares."""
    prepared = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    return getattr(metadata, "num_ctas", 1) == 1 and not any(
        getattr(metadata, name, 0) for name in prepared
    )


def _check_devices(args: Sequence[Any], device: torch.device) -> None:
    """The address of a tensor elsewhere would end the process's use of the GPU."""
    for x in args:
        if isinstance(x, tuple):
            _check_devices(x, device)
        elif isinstance(x, Tensor) and x.device != device:
            raise InvalidArgument(
                f"a tensor is on {x.device}, the kernel is launched on {device}: move it there"
            )


def _entry(ptx: str, name: str) -> str:
    """The head of an entry: from its name to its body."""
    begin = ptx.index(f".entry {name}(")
    return ptx[begin : ptx.index("{", begin)]
