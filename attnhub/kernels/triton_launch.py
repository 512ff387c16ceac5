"""Kernels in Triton: compiled by Triton, launched by AttnHub's launcher.

Triton looks at every argument of every launch, in Python, and hands over to a launcher in C that
asks the driver about each pointer: some twenty microseconds on a server, where the driver's own
call takes two. Here the types of the arguments find a launcher that was made before; what is packed
is what the kernel's PTX says that it takes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnhub.jit import EntryPoint, Launcher, LoadedKernel, ParamLayout
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


class _Known(NamedTuple):
    """How to launch a kernel with arguments of some types: which of their values it takes.

    ``launch`` is None where only Triton can. ``kernel`` is held, since its id is part of the key.
    """

    kernel: Any
    launch: Launcher | None
    takes: tuple[bool, ...]


_known: dict[tuple[Any, ...], _Known] = {}


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
    multiples of 16, numbers that are 1. Hooks for Triton's launches are not called. In the
    interpreter, and on GPUs of other vendors, Triton launches.

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
        DriverError: the driver refuses the kernel or the launch.

    Example:
        >>> launch_triton(copy, (triton.cdiv(n, 1024),), x.device, x, y, n, BLOCK=1024, num_warps=4)
    """
    if 0 in grid:
        return
    if not _is_direct(kernel, device):
        _by_triton(kernel, grid, device, args, constants, pdl=pdl)
        return
    values: list[Any] = []
    kinds: list[Any] = [id(kernel), device.index, pdl, *constants.values()]
    _take(args, values, kinds)
    key = tuple(kinds)
    found = _known.get(key)
    if found is None:
        found = _known[key] = _prepared(kernel, device, args, constants, pdl=pdl)
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
    """Whether there is a compiled kernel to launch, and the driver is CUDA's."""
    return device.type == "cuda" and torch.version.cuda is not None and hasattr(kernel, "warmup")


def _take(args: tuple[Any, ...], values: list[Any], kinds: list[Any]) -> None:
    """The values of arguments, and of each what Triton compiles another kernel for, at least."""
    value, kind = values.append, kinds.append
    for x in args:
        given = type(x)
        if given is int:
            value(x)
            kind(2 if x == 1 else x & 15 == 0)
            if not -_INT32 <= x < _INT32:
                kind("64 bits")
        elif given is Tensor or isinstance(x, Tensor):
            place = x.data_ptr()
            value(place)
            kind(x.dtype)
            kind(place & 15 == 0)
        elif isinstance(x, tuple):
            kind(len(x))
            _take(x, values, kinds)
        else:
            value(x or 0)
            kind(x if x is None else given)


def _paths(args: Sequence[Any], above: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where each value of :func:`_take` lies among arguments and the tuples in them."""
    for i, x in enumerate(args):
        if isinstance(x, tuple):
            yield from _paths(x, (*above, i))
        else:
            yield (*above, i)


@lru_cache
def _has_pdl(index: int) -> bool:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor >= _FIRST_WITH_PDL


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
    with torch.cuda.device(device):
        made = kernel.warmup(*args, grid=(1,), **constants, **more)
        made = made.result() if hasattr(made, "result") else made
    fixed = {path if isinstance(path, tuple) else (path,) for path in made.src.constants}
    takes = tuple(path not in fixed for path in _paths(args))
    entry = _entry(made.asm["ptx"], made.metadata.name)
    block = _BLOCK.search(entry)
    found = _PARAMETER.findall(entry)
    kinds = ["void*" if is_pointer else _KINDS.get(kind, "") for kind, is_pointer in found]
    added = len(kinds) - sum(takes)
    if "" in kinds or block is None or not 0 <= added <= _MOST_ADDED or _has_scratch(made.metadata):
        return _Known(kernel, None, takes)
    name, params = made.metadata.name, ParamLayout({f"{i}": kind for i, kind in enumerate(kinds)})
    loaded = LoadedKernel(made.asm["cubin"], EntryPoint(name=name, entry=name, params=params))
    launch = loaded.launcher(
        device.index,
        block=int(block[1]),
        smem=made.metadata.shared,
        pdl=overlaps,
    )
    return _Known(kernel, launch.bind(*[0] * added), takes)


def _has_scratch(metadata: Any) -> bool:
    sizes = (getattr(metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
    return any(sizes)


def _entry(ptx: str, name: str) -> str:
    """The head of an entry: from its name to its body."""
    begin = ptx.index(f".entry {name}(")
    return ptx[begin : ptx.index("{", begin)]
