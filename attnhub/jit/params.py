"""The one struct that a kernel takes, described in Python: what a launch and the tests pack."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

from attnhub.errors import InvalidArgument

#: Type -> its code for ``struct``; each is aligned to its size.
_SCALARS = {
    "bool": "?",
    "int": "i",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "float": "f",
    "double": "d",
}

#: Values that messages show.
_PLAIN = (Number, str, bytes, type(None))

#: The size and the alignment of a tensor map, as CUDA's header declares it.
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamField:
    """A member that holds a value; one of an inner struct is named ``"outer.inner"``."""

    name: str
    kind: str
    offset: int

    @property
    def is_pointer(self) -> bool:
        """Whether it takes an address."""
        return self.kind.endswith("*")

    @property
    def is_tensor_map(self) -> bool:
        """Whether it takes the bytes of a tensor map."""
        return self.kind.rsplit("::", maxsplit=1)[-1] == "TensorMap"

    def code_for(self, value: Any) -> str:
        """The code that ``struct`` packs a value by.

        Raises:
            TypeError: it would have to be made a number first. A tensor would wait for its device.
        """
        wanted = int if self.kind == "bool" else Number
        if not self.is_tensor_map and not isinstance(value, wanted):
            raise TypeError("give a bool" if wanted is int else "give a number")
        return _code(self)


@dataclass(frozen=True, slots=True, init=False)
class ParamLayout:
    """The members of a parameter struct, in order. Hashable.

    Scalars are bool, int, i32, u32, i64, u64, float or double. A pointer is any type and ``*``.
    ``TensorMap`` is one of 128 bytes. Another layout stands for a member that is a struct itself.

    Args:
        members: the type of each member by its name in C++.

    Raises:
        InvalidArgument: an unknown type.

    Example:
        >>> work = ParamLayout({"tiles": "const int*", "num_tiles": "int"})
        >>> params = ParamLayout({"x": "const Half*", "work": work, "scale": "float"})
        >>> [field.name for field in params.fields]
        ['x', 'work.tiles', 'work.num_tiles', 'scale']
    """

    fields: tuple[ParamField, ...]
    size: int
    alignment: int

    def __init__(self, members: Mapping[str, str | ParamLayout]) -> None:
        fields: list[ParamField] = []
        end, widest = 0, 1
        for name, member in members.items():
            inner, size, alignment = _member(name, member)
            begin = -(-end // alignment) * alignment
            fields += [replace(field, offset=begin + field.offset) for field in inner]
            end, widest = begin + size, max(widest, alignment)
        object.__setattr__(self, "fields", tuple(fields))
        # A struct without members, as a policy that needs none, has a byte in C++ all the same.
        object.__setattr__(self, "size", max(-(-end // widest) * widest, 1))
        object.__setattr__(self, "alignment", widest)

    def format(self, count: int | None = None) -> str:
        """The struct as the module ``struct`` describes it, padding included.

        With ``count``, its first fields only, up to where the next one begins.
        """
        text, end = "<", 0
        for field in self.fields[:count]:
            code = _code(field)
            text += f"{field.offset - end}x{code}"
            end = field.offset + struct.calcsize(f"<{code}")
        rest = self.fields[len(self.fields) if count is None else count :]
        return f"{text}{(rest[0].offset if rest else self.size) - end}x"

    def ordered(self, values: Mapping[str, Any]) -> list[Any]:
        """Values given by name, in the order of the fields; those of an inner struct as a mapping.

        Raises:
            InvalidArgument: a value is missing or unknown.
        """
        given = dict(_flat(values))
        names = [field.name for field in self.fields]
        if given.keys() != {*names}:
            wrong = sorted(given.keys() ^ {*names})
            raise InvalidArgument(f"parameters {wrong} are missing or unknown: give {names}")
        return [given[name] for name in names]

    def pack(self, values: Sequence[Any]) -> bytes:
        """The bytes of the struct; a pointer is an int, a tensor map its bytes.

        Raises:
            InvalidArgument: not one value for each field, or one that does not fit its field.
        """
        if told := self.misfit(values):
            raise InvalidArgument(told)
        return struct.pack(self.format(), *values)

    def misfit(self, values: Sequence[Any], first: int = 0, count: int | None = None) -> str:
        """What keeps values of ``count`` fields from ``first`` on from being packed; or empty."""
        fields = self.fields[first : None if count is None else first + count]
        if len(values) != len(fields):
            names = ", ".join(field.name for field in fields)
            return f"{len(values)} values for {len(fields)} parameters: give {names}"
        for field, value in zip(fields, values, strict=True):
            try:
                struct.pack(f"<{field.code_for(value)}", value)
            except (struct.error, TypeError, OverflowError) as error:
                hint = ": give its address, as tensor.data_ptr()" if field.is_pointer else ""
                # What others look like may take the device to find out.
                shown = repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
                return f"{field.name}={shown} does not fit {field.kind} ({error}){hint}"
        return ""


def _code(field: ParamField) -> str:
    if field.is_tensor_map:
        return f"{TENSOR_MAP_BYTES}s"
    return "Q" if field.is_pointer else _SCALARS[field.kind]


def _member(name: str, member: str | ParamLayout) -> tuple[list[ParamField], int, int]:
    """The fields of one member, from its own beginning, its size and its alignment."""
    if isinstance(member, ParamLayout):
        inner = [replace(field, name=f"{name}.{field.name}") for field in member.fields]
        return inner, member.size, member.alignment
    field = ParamField(name=name, kind=member.strip(), offset=0)
    if not field.is_tensor_map and not field.is_pointer and field.kind not in _SCALARS:
        known = ", ".join(_SCALARS)
        raise InvalidArgument(
            f"field {name!r} has type {member!r}: give a pointer, TensorMap, a layout or {known}"
        )
    size = struct.calcsize(f"<{_code(field)}")
    return [field], size, TENSOR_MAP_ALIGNMENT if field.is_tensor_map else size


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
