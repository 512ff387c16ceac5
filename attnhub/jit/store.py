"""A folder of cubins: what the cache writes, and what comes ready-made, has one layout.

    kernels/<ab>/<key>/    kernel.cubin, entry.json (the hash of the cubin)
    rendered/<key>         rendered sources by what they are rendered from
    tmp/                   folders in which entries are made

An entry appears by one rename and is never changed, so readers take no lock, and a process that is
killed leaves nothing but a folder under ``tmp``. What does not match its hash counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_IMAGE, _FACTS = "kernel.cubin", "entry.json"

#: A folder under ``tmp`` this old belongs to a build that was killed.
_STALE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel of a store, as ``attnhub cache list`` shows it."""

    key: str
    name: str
    arch: str
    compiler: str
    seconds: float
    bytes: int
    used: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Store:
    """The kernels in one folder."""

    root: Path

    # -- reading ---------------------------------------------------------------------------

    def place(self, key: str) -> Path:
        """The folder of an entry, whether there is one or not."""
        return self.root / "kernels" / key[:2] / key

    def load(self, key: str) -> bytes | None:
        """The cubin under a key; None if it is absent or not what its hash says."""
        return _image(self.place(key))

    def with_content(self, content: str) -> list[str]:
        """The keys of what any compiler made of this content."""
        return sorted(place.name for place in self.place(content).parent.glob(f"{content}.*"))

    def rendered(self, key: str) -> str | None:
        """The rendered source under a template key."""
        with contextlib.suppress(OSError, UnicodeError):
            return (self.root / "rendered" / key).read_text(encoding="utf-8")
        return None

    def entries(self) -> list[Entry]:
        """Every entry whose facts can be read."""
        return list(self._entries())

    def serves(self, arch: str) -> bool:
        """Whether an entry is for devices of an architecture, with or without a suffix."""
        return any(entry.arch.rstrip("af") == arch for entry in self._entries())

    def _entries(self) -> Iterator[Entry]:
        for folder in self.root.glob("kernels/*/*"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                yield _entry(folder)

    # -- writing ---------------------------------------------------------------------------

    def note_use(self, key: str) -> None:
        """Let the entry's time say when it was last of use."""
        with contextlib.suppress(OSError):
            os.utime(self.place(key) / _FACTS)

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder on the same file system, so that a rename publishes what is in it."""
        folder = self.root / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        made = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def remember(self, key: str, body: str) -> None:
        """Keep a rendered source, so that the next process need not render."""
        folder = self.root / "rendered"
        with self.workspace() as tmp:
            folder.mkdir(exist_ok=True)
            (tmp / "body").write_text(body, encoding="utf-8")
            (tmp / "body").replace(folder / key)

    def publish(self, key: str, made: Path, facts: dict[str, Any]) -> bytes:
        """Turn a folder into the entry of a key; returns its cubin.

        Args:
            key: the entry's name.
            made: the folder, in a workspace of this store, that holds the cubin.
            facts: what :class:`Entry` says of it: name, arch, compiler, seconds.
        """
        image = (made / _IMAGE).read_bytes()
        facts = {**facts, "sha256": hashlib.sha256(image).hexdigest(), "bytes": len(image)}
        (made / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for file in made.iterdir():
            _sync(file)
        _sync(made)
        place = self.place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        _move_in(made, place)
        _sync(place.parent)
        return image


def _sweep(folder: Path) -> None:
    """Remove what killed builds left."""
    for old in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(old, ignore_errors=True)


def _move_in(made: Path, place: Path, attempts: int = 3) -> None:
    """Rename a build to its entry; what stands there gives way if it is broken, else stays."""
    try:
        made.rename(place)
    except OSError:
        # Another process may have been faster although we hold the lock: locks do nothing on some
        # network file systems.
        if _image(place) is not None:
            return
        if attempts == 1:
            raise
        with contextlib.suppress(FileNotFoundError):
            place.rename(made.with_name(f"{made.name}.broken{attempts}"))
        _move_in(made, place, attempts - 1)


def _image(folder: Path) -> bytes | None:
    """The cubin of an entry, if it is whole."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        image = (folder / _IMAGE).read_bytes()
        whole: bool = facts["sha256"] == hashlib.sha256(image).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return image if whole else None


def _entry(folder: Path) -> Entry:
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    return Entry(
        key=folder.name,
        name=facts["name"],
        arch=facts["arch"],
        compiler=facts["compiler"],
        seconds=facts["seconds"],
        bytes=facts["bytes"],
        used=(folder / _FACTS).stat().st_mtime,
        folder=folder,
    )


def _sync(path: Path) -> None:
    """Have the disk hold what was written, so that no power cut leaves half an entry."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
