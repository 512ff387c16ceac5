"""Kernels built ahead of time: found by their content alone, so that no compiler need be here.

Such a kernel lies in a :class:`~attnhub.jit.store.Store` under its content key. Two places are
looked at, and neither needs a search: the folder ``cubins`` of the package that holds the kernel's
template, and the folder that ``ATTNHUB_CUBIN_DIR`` names. Both are only ever read.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attnhub.core.env import environment
from attnhub.errors import InvalidArgument
from attnhub.jit import fingerprint
from attnhub.jit.compilers import locate
from attnhub.jit.errors import CacheWarning
from attnhub.jit.store import Store

if TYPE_CHECKING:
    from attnhub.jit.build import Cubin
    from attnhub.jit.spec import KernelSpec

#: The folder of a package that holds its kernels.
FOLDER = "cubins"


def stores(packages: Iterable[str]) -> list[Store]:
    """The places there are, the user's own before those of the packages.

    Raises:
        InvalidArgument: ``ATTNHUB_CUBIN_DIR`` names no folder.
    """
    found = [_named(environment().cubin_dir), *map(_of_package, packages)]
    return [Store(folder) for folder in dict.fromkeys(found) if folder is not None]


@functools.cache
def _named(text: str) -> Path | None:
    if text and not Path(text).is_dir():
        raise InvalidArgument(
            f"ATTNHUB_CUBIN_DIR={text}: there is no such folder; "
            "`attnhub warmup --output` makes one"
        )
    return Path(text) if text else None


@functools.cache
def _of_package(name: str) -> Path | None:
    """The folder of a top-level package, which is not imported; None if it brings no kernels."""
    places = (folder / FOLDER for folder in locate.package_folders(name))
    return next(filter(Path.is_dir, places), None)


def _stores(spec: KernelSpec) -> list[Store]:
    return stores([spec.template.partition(":")[0].partition(".")[0]])


def rendered(spec: KernelSpec, key: str) -> str | None:
    """The source of a kernel under its template key, if it came with the cubins."""
    found = (store.rendered(key) for store in _stores(spec))
    return next((body for body in found if body is not None), None)


def load(spec: KernelSpec, content: str) -> bytes | None:
    """The cubin of a kernel under its content key; a damaged one is told of and passed over."""
    for store in _stores(spec):
        if image := store.load(content):
            return image
        if (place := store.place(content)).exists():
            warnings.warn(
                f"{spec} in {place} is damaged and passed over; install it anew",
                CacheWarning,
                stacklevel=2,
            )
    return None


def export(cubins: Iterable[Cubin], folder: Path) -> None:
    """Write kernels as a package or ``ATTNHUB_CUBIN_DIR`` brings them; what is there stays.

    Args:
        cubins: what :func:`attnhub.jit.build.compile_kernels` returned.
        folder: where; it may hold kernels of other problems and architectures already.

    Raises:
        InvalidArgument: the folder cannot be written.
    """
    store = Store(folder)
    try:
        for cubin in cubins:
            _add(store, cubin)
    except OSError as error:
        raise InvalidArgument(
            f"{folder} cannot be written ({error.strerror}); give a folder that can"
        ) from error
    with contextlib.suppress(OSError):  # nobody else writes there now, so a wheel need not hold it
        (folder / "tmp").rmdir()


def _add(store: Store, cubin: Cubin) -> None:
    if store.load(cubin.content) is None:
        with store.workspace() as tmp:
            made = tmp / cubin.content
            made.mkdir()
            (made / "kernel.cubin").write_bytes(cubin.image)
            facts = {"name": cubin.spec.name, "arch": cubin.spec.arch, "compiler": cubin.compiler}
            store.publish(cubin.content, made, {**facts, "seconds": cubin.seconds})
    key = fingerprint.template_key(cubin.spec)
    if store.rendered(key) is None:
        from attnhub.jit import render

        store.remember(key, render.render(cubin.spec))
