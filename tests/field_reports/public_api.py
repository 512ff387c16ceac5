"""The public names of attnhub and their signatures, as text.

``python -m tests.field_reports.public_api`` rewrites ``tests/golden/public_api.txt``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attnhub

GOLDEN = Path(__file__).parents[1] / "golden" / "public_api.txt"


def _public(module: str) -> list[str]:
    """What a module declares, or defines where it declares nothing (the errors)."""
    loaded = importlib.import_module(module)
    own = [n for n, v in vars(loaded).items() if getattr(v, "__module__", "") == module]
    return sorted(getattr(loaded, "__all__", own))


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public name with its value, module by module."""
    for module in ("attnhub", *(f"attnhub.{family}" for family in attnhub._FAMILIES)):
        for name in _public(module):
            yield f"{module}.{name}", getattr(importlib.import_module(module), name)


def _ours(cls: type) -> list[type]:
    return [c for c in cls.__mro__ if c.__module__.startswith("attnhub")]


def _members(cls: type) -> dict[str, Any]:
    """The public methods and properties that attnhub's own classes give ``cls``."""
    found: dict[str, Any] = {}
    for c in _ours(cls):
        for name, value in vars(c).items():
            if isinstance(value, functools.cached_property):
                value = property(value.func)  # noqa: PLW2901 - read like any other property
            known = inspect.isroutine(value) or isinstance(value, property)
            if known and not name.startswith("_"):
                found.setdefault(name, value)
    return dict(sorted(found.items()))


def _constructor(cls: type) -> Callable[..., Any] | None:
    """The ``__init__`` of ``cls`` if it is attnhub's own, not Python's."""
    if getattr(cls, "_is_protocol", False) or issubclass(cls, enum.Enum):
        return None
    return next((vars(c)["__init__"] for c in _ours(cls) if "__init__" in vars(c)), None)


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, constructor and method."""
    for name, value in public_names():
        if inspect.isclass(value):
            init = _constructor(value)
            if init is not None:
                yield name, init
            for member, raw in _members(value).items():
                if not isinstance(raw, property):
                    yield f"{name}.{member}", inspect.unwrap(getattr(raw, "__func__", raw))
        elif inspect.isroutine(value):
            yield name, value


def _parameter(p: inspect.Parameter) -> str:
    text = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
    if p.annotation is not p.empty:
        text += f": {_annotation(p.annotation)}"
    return text if p.default is p.empty else f"{text} = {_default(p.default)}"


def _default(value: Any) -> str:
    """A default as one would write it: ``Scales()`` for ``Scales(q=1.0, k=1.0, v=1.0)``."""
    if value is dataclasses.MISSING:
        return "MISSING"
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    if fields and all(getattr(value, f.name) == f.default for f in fields):
        return f"{type(value).__name__}()"
    return repr(value)


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(_parameter(p))
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    return f"({', '.join(parts)}){arrow}"


def _class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(b.__name__ for b in cls.__bases__ if b is not object)
    yield f"class {name}" + (f"({bases})" if bases else "")
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
    init = _constructor(cls)
    if init is not None:
        yield f"    __init__{_signature(init)}"
    for member, raw in _members(cls).items():
        if isinstance(raw, property):
            yield f"    {member}: {_annotation(inspect.signature(raw.fget).return_annotation)}"
        else:
            kind = "@classmethod " if isinstance(raw, classmethod) else ""
            yield f"    {kind}{member}{_signature(getattr(raw, '__func__', raw))}"


def text() -> str:
    """All of it, one line a function or method."""
    lines: list[str] = []
    seen: dict[int, str] = {}
    for name, value in public_names():
        first = seen.setdefault(id(value), name)
        if first != name:
            lines.append(f"{name} is {first}")
        elif inspect.isclass(value):
            lines += _class(name, value)
        elif inspect.isroutine(value):
            lines.append(f"{name}{_signature(value)}")
        else:
            lines.append(f"{name} = {value!r}" if isinstance(value, str) else name)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
