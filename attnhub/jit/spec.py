"""KernelSpec: everything that decides what one kernel is. Hashable, printable, free of torch.

Files are named ``"package:path"``, as ``"attnhub_fa2_cuda:templates/attention.cu.jinja"``, so that
a spec means the same on every machine.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from attnhub.errors import InvalidArgument, UnknownName
from attnhub.jit.params import ParamLayout

#: Architectures that a kernel can be made for, with the suffix that unlocks their own instructions.
ARCHS = tuple(
    """sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_103 sm_103a
    sm_103f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f""".split()
)

#: Flags that change what a kernel computes or how fast, spelled the same for NVRTC and nvcc.
FLAGS = (
    "--use_fast_math",
    "--ftz",
    "--prec-div",
    "--prec-sqrt",
    "--fmad",
    "--maxrregcount",
    "--extra-device-vectorization",
    "--generate-line-info",
    "--define-macro",
)

#: Types of the values of a context, beside enums, tuples and dataclasses of them.
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """A kernel that others compiled, as far as a launch needs it.

    Args:
        name: how errors call it.
        entry: the symbol to launch.
        params: its parameters, each of which it takes by itself; none is a layout.

    Example:
        >>> params = ParamLayout({"x": "float*", "n": "i32"})
        >>> LoadedKernel(cubin, EntryPoint(name="copy", entry="copy", params=params))
    """

    name: str
    entry: str
    params: ParamLayout
    takes_struct: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"kernel {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """One kernel of one architecture.

    Args:
        name: how progress, errors and the cache call it.
        template: the Jinja template, ``"package:path"``.
        context: a frozen dataclass; the template sees its fields, and ``entry``.
        entry: the symbol to launch, ``extern "C"``. It takes one struct, by value.
        params: the layout of that struct.
        arch: ``"sm_90a"``; one of :data:`ARCHS`.
        include_dirs: folders of own headers, ``"package:path"``, searched in order.
        flags: of those in :data:`FLAGS`, with ``=value`` where they take one.

    Raises:
        UnknownName: an architecture or flag that is not listed.
        InvalidArgument: an entry that is no name in C, or a context that is not a frozen dataclass
            of plain values.

    Example:
        >>> KernelSpec(
        ...     name="scale",
        ...     template="attnhub_demo:templates/scale.cu.jinja",
        ...     context=Scale(dtype="float", factor=2.0),
        ...     entry="scale",
        ...     params=ParamLayout({"x": "float*", "n": "int"}),
        ...     arch="sm_90a",
        ... )
    """

    name: str
    template: str
    context: Any = field(compare=False)
    entry: str
    params: ParamLayout
    arch: str
    include_dirs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    takes_struct: ClassVar[bool] = True
    #: The values of the context as text. It stands for the context when specs are compared, since
    #: to Python 1, 1.0 and True are equal, and in C++ they are not.
    content: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.arch not in ARCHS:
            raise UnknownName("architecture", self.arch, ARCHS)
        for flag in self.flags:
            if flag.partition("=")[0] not in FLAGS:
                raise UnknownName("compiler flag", flag, FLAGS)
        if not (self.entry.isascii() and self.entry.isidentifier()):
            raise InvalidArgument(
                f"entry={self.entry!r}: give a name as C has them, of letters, digits and _"
            )
        seen = values(self.context)
        if "entry" in seen:
            raise InvalidArgument("the context has a field 'entry', a name that the spec takes")
        object.__setattr__(self, "content", json.dumps(seen, sort_keys=True))

    def __str__(self) -> str:
        return f"kernel {self.name!r} for {self.arch}"

    def source(self) -> str:
        """The CUDA source, as the compiler gets it."""
        from attnhub.jit import render

        return render.banner(self) + render.render(self)

    def folders(self) -> tuple[Path, ...]:
        """Where its own headers lie."""
        return tuple(map(locate, self.include_dirs))


def values(context: Any) -> dict[str, Any]:
    """What a template sees of a context: its fields by name, as plain values.

    Enums are their values and inner dataclasses dicts. So nothing reaches a source that is not in
    the key of what was rendered, as a property or a method of the context would.

    Raises:
        InvalidArgument: not an instance of a frozen dataclass, or a field of another type.
    """
    kind = type(context)
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise InvalidArgument(
            f"a context holds a {kind.__name__}: {context!r}; use bool, int, float, str, None, "
            "enums, tuples and frozen dataclasses, itself being one of these last"
        )
    return {f.name: _value(getattr(context, f.name)) for f in dataclasses.fields(context)}


def _value(value: Any) -> Any:
    if isinstance(value, Enum):
        return _value(value.value)
    if isinstance(value, tuple):
        return tuple(map(_value, value))
    return value if type(value) in _PLAIN else values(value)


def locate(resource: str) -> Path:
    """The file or folder that ``"package:path"`` names; the package is not imported.

    Raises:
        InvalidArgument: no such package, or nothing at that path in it.
    """
    package, _, inner = resource.partition(":")
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise InvalidArgument(f"{resource!r}: no package {package!r}; write 'package:path'")
    folders = [Path(f) for f in found.submodule_search_locations]
    for folder in folders:
        if (folder / inner).exists():
            return folder / inner
    raise InvalidArgument(f"{resource!r}: {package} has no {inner!r} in {folders[0]}")
