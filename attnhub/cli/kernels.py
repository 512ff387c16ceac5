"""``attnhub cache``: what the cache of compiled kernels holds, and how to make it smaller."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnhub.cli import output

if TYPE_CHECKING:
    from attnhub.jit import Cache, Entry

#: Digits of a key that tell kernels of one name apart.
_KEY = 8

cache = typer.Typer(name="cache", help="The compiled kernels kept on this machine.")


def the_cache() -> Cache:
    """The cache of this process, where ATTNHUB_CACHE_DIR says or in the user's cache folder."""
    from attnhub.core.env import environment
    from attnhub.jit import Cache

    return Cache(environment().cache_dir or None)


@cache.command("list")
def list_kernels(as_json: output.Json = False) -> None:
    """Print every kernel, the one unused for longest first, and the size of all."""
    found = the_cache()
    entries = found.entries()
    if as_json:
        output.document({"folder": str(found.home), "kernels": list(map(_facts, entries))})
        return
    grid = output.Grid(
        title=str(found.home),
        header=("kernel", "key", "arch", "compiler", "built in", "size", "unused"),
    )
    for e in entries:
        unused = f"{(time.time() - e.used) / 86400:.1f} days"
        key, seconds = e.key[:_KEY], f"{e.seconds:.2f} s"
        grid.add(e.name, key, e.arch, e.compiler, seconds, _size(e.bytes), unused)
    grid.show()
    output.line(f"{output.counted(len(entries), 'kernel')}, {_size(sum(e.bytes for e in entries))}")


@cache.command()
def prune(
    max_mb: Annotated[
        float | None, typer.Option(help="Keep the most recently used ones up to this size.", min=0)
    ] = None,
    unused_days: Annotated[
        float | None, typer.Option(help="Remove those that nobody used for so long.", min=0)
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Remove kernels; without options only what failed builds left."""
    max_bytes = None if max_mb is None else int(max_mb * 1e6)
    removed = the_cache().prune(max_bytes=max_bytes, unused_days=unused_days)
    if as_json:
        output.document({"removed": list(map(_facts, removed))})
        return
    size = _size(sum(e.bytes for e in removed))
    output.line(f"removed {output.counted(len(removed), 'kernel')}, {size}")


def _facts(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "folder": str(entry.folder)}


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
