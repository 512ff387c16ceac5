"""The content of a kernel as keys: equal content has equal keys on every machine."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.jit import spec as specs
from attnhub.jit.spec import KernelSpec

#: Raised when the meaning of a key or the layout of an entry changes.
_FORMAT = 1

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(\S[^\n]*)", re.MULTILINE)
_QUOTED = re.compile(r"""(?P<open>["<])(?P<name>[^">]+)[">]""")


def digest(value: Any) -> str:
    """128 bits of SHA-256 over the JSON of a value, as 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def template_key(spec: KernelSpec) -> str:
    """What rendering reads: the template, the context, the entry, and our code that renders.

    The cache keeps the rendered text under it, which is how a hit does without Jinja.
    """
    template = specs.locate(spec.template).read_text(encoding="utf-8")
    return digest([_FORMAT, _renderer(), template, spec.content, spec.entry])


@functools.cache
def _renderer() -> str:
    """The text of the module that renders; reading it is much cheaper than importing it."""
    return Path(__file__).with_name("render.py").read_text(encoding="utf-8")


def content_key(spec: KernelSpec, body: str) -> str:
    """What decides the cubin, the compiler aside: source, own headers, flags, architecture.

    Args:
        spec: the kernel.
        body: its rendered source without the banner, whose version does not change the kernel.
    """
    found = headers(body, spec.folders())
    return digest([_FORMAT, body, found, spec.flags, spec.arch])


def headers(source: str, folders: Sequence[Path]) -> dict[str, str]:
    """Every own header that a source includes, directly or not: its name and its hash.

    Conditions are not evaluated, so a header that only some architectures include counts too.
    A header in none of the folders belongs to the compiler, whose build is in the key.

    Raises:
        InvalidArgument: ``#include MACRO``, which cannot be followed without a preprocessor.
    """
    found: dict[str, str] = {}
    open_ = [(name, Path()) for name in _includes(source, "the rendered source")]
    while open_:
        (quoted, name), beside = open_.pop()
        places = ([beside] if quoted and beside != Path() else []) + list(folders)
        path = next((p / name for p in places if (p / name).is_file()), None)
        if path is None or (label := _label(path, folders)) in found:
            continue
        stat = path.stat()
        found[label], inner = _scan(path, stat.st_mtime_ns, stat.st_size)
        open_ += [(include, path.parent) for include in inner]
    return found


def _label(path: Path, folders: Sequence[Path]) -> str:
    """The header's name from its folder, so that keys do not depend on where things lie."""
    full = path.resolve()
    for i, folder in enumerate(folders):
        if full.is_relative_to(folder.resolve()):
            return f"{i}/{full.relative_to(folder.resolve()).as_posix()}"
    return path.name


@functools.lru_cache(maxsize=1024)
def _scan(path: Path, mtime_ns: int, size: int) -> tuple[str, tuple[tuple[bool, str], ...]]:
    """The hash and the includes of a header; read again when its time or size changes."""
    data = path.read_bytes()
    text = data.decode("utf-8", errors="replace")
    return hashlib.sha256(data).hexdigest()[:32], _includes(text, str(path))


def _includes(text: str, where: str) -> tuple[tuple[bool, str], ...]:
    """Each include of a text: whether it is quoted, and its name."""
    found = []
    for rest in _INCLUDE.findall(text):
        match = _QUOTED.match(rest)
        if match is None:
            raise InvalidArgument(
                f"{where}: `#include {rest.strip()}` names no file, so a change of it would go "
                "unseen; include the header by its name"
            )
        found.append((match["open"] == '"', match["name"]))
    return tuple(found)
