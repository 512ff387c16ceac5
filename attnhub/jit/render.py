"""From a spec to CUDA source. The only module that imports Jinja; a cache hit does without it."""

from __future__ import annotations

import functools
import math
import re
from importlib import metadata
from typing import Any

import jinja2

from attnhub.errors import InvalidArgument
from attnhub.jit import spec as specs
from attnhub.jit.spec import KernelSpec

#: Longer values of the context are cut in the banner; the source shows them in full anyway.
_WIDTH = 80
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def cpp_literal(value: Any) -> str:
    """A Python value as a C++ literal: the one filter of templates.

    ``True`` is ``true``, ``3`` is ``3``, ``0.5`` is the float ``0.5f``, a string is quoted, and a
    tuple is a braced list.

    Raises:
        InvalidArgument: a value without a literal, as NaN, infinity, None or a list.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value!r}f"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"{{{', '.join(map(cpp_literal, value))}}}"
    raise InvalidArgument(
        f"cpp_literal has no C++ for {value!r} ({type(value).__name__}); it takes bool, int, "
        "finite float, str and tuples of them"
    )


def _integer(value: int) -> str:
    if -(2**31) < value < 2**31:
        return str(value)
    if -(2**63) < value < 2**63:
        return f"{value}ll"
    if 0 <= value < 2**64:
        return f"{value}ull"
    raise InvalidArgument(f"cpp_literal: {value} does not fit into 64 bits")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - this makes C++, not HTML
    )
    environment.filters["cpp_literal"] = cpp_literal
    return environment


def render(spec: KernelSpec) -> str:
    """The source of a kernel, without the banner.

    Raises:
        InvalidArgument: a template that does not parse, that uses a name the context lacks, or that
            does not define the spec's entry.
    """
    text = specs.locate(spec.template).read_text(encoding="utf-8")
    fields = specs.values(spec.context)
    try:
        source = _environment().from_string(text).render(**fields, entry=spec.entry)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f"{spec.template}, line {line}" if line else spec.template
        raise InvalidArgument(
            f"{place}: {error}; the context is {type(spec.context).__name__} with "
            f"{', '.join(fields) or 'no fields'}, and entry"
        ) from error
    if not _defines(source, spec.entry):
        raise InvalidArgument(
            f'{spec.template}: it defines no extern "C" __global__ function called '
            f"{spec.entry!r}; write {{{{ entry }}}}(...) as its name"
        )
    return source


def _defines(source: str, entry: str) -> bool:
    """Whether a kernel has this name, which is not missed before the kernel is loaded on a GPU."""
    kernel = rf'extern\s*"C"[^;{{}}]*\{{?[^;{{}}]*\b__global__\b[^;{{}}]*\b{entry}\s*\('
    return re.search(kernel, _COMMENTS.sub(" ", source)) is not None


def banner(spec: KernelSpec) -> str:
    """The comment above a rendered source: which spec and template, and which version made it."""
    return (
        f"// {spec}, rendered by attnhub {metadata.version('attnhub')} from {spec.template}\n"
        f"// entry: {spec.entry}\n"
        f"// flags: {' '.join(spec.flags) or 'none'}\n"
        f"// headers: {' '.join(spec.include_dirs) or 'none of our own'}\n"
        f"// context: {type(spec.context).__name__}\n"
        + "".join(f"//   {n} = {_short(v)}\n" for n, v in specs.values(spec.context).items())
        + "\n"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
