"""The folder of compiled kernels, shared by processes and machines of equal content.

    kernels/<ab>/<key>/    kernel.cubin, kernel.cu, build.log, entry.json (the hash of the cubin)
    rendered/<key>         rendered sources by what they are rendered from
    failed/<key>/          sources and logs of kernels that did not compile
    locks/, tmp/           one lock per key; folders in which builds go on

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
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnhub.jit.errors import CacheWarning

if TYPE_CHECKING:
    from filelock import BaseFileLock

_IMAGE, _FACTS = "kernel.cubin", "entry.json"

#: A folder under ``tmp`` this old belongs to a build that was killed.
_STALE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel in the cache, as ``attnhub cache list`` shows it."""

    key: str
    name: str
    arch: str
    compiler: str
    seconds: float
    bytes: int
    used: float
    folder: Path


class Cache:
    """The kernels kept on this machine.

    Args:
        folder: where; by default the user's cache folder. If it cannot be written, what is there is
            still read, and new kernels go to a folder under the temporary one, with a warning.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.home = Path(folder) if folder else _user_folder()
        self._root: Path | None = None

    @property
    def root(self) -> Path:
        """The folder that is written: ``home``, or the fallback. Decided by the first who asks."""
        if self._root is None:
            self._root = _writable(self.home)
        return self._root

    def _roots(self) -> list[Path]:
        """Where to read; reading alone does not decide where to write."""
        other = self._root or _fallback(make=False)
        return list(dict.fromkeys([self.home, *([other] if other else [])]))

    # -- reading ---------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """The cubin under a key; None if it is absent or not what its hash says."""
        for root in self._roots():
            if image := _image(_place(root, key)):
                return image
        return None

    def rendered(self, key: str) -> str | None:
        """The rendered source under a template key."""
        for root in self._roots():
            with contextlib.suppress(OSError, UnicodeError):
                return (root / "rendered" / key).read_text(encoding="utf-8")
        return None

    def entries(self) -> list[Entry]:
        """Every whole entry, the one unused for longest first."""
        found = []
        for root in self._roots():
            for folder in root.glob("kernels/*/*"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    found.append(_entry(folder))
        return sorted(found, key=lambda e: e.used)

    # -- writing ---------------------------------------------------------------------------

    def lock(self, key: str) -> BaseFileLock:
        """The lock of a key, not yet taken."""
        from filelock import FileLock

        folder = self.root / "locks"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{key}.lock")

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder on the same file system, so that a rename publishes what is in it."""
        folder = self.root / "tmp"
        folder.mkdir(exist_ok=True)
        self._sweep(folder)
        made = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @staticmethod
    def _sweep(folder: Path) -> None:
        """Remove what killed builds left."""
        for old in folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)

    def remember(self, key: str, body: str) -> None:
        """Keep a rendered source, so that the next process need not render."""
        folder = self.root / "rendered"
        # Without it the next process renders, so nothing is worth failing for.
        with contextlib.suppress(OSError), self.workspace() as tmp:
            folder.mkdir(exist_ok=True)
            (tmp / "body").write_text(body, encoding="utf-8")
            (tmp / "body").replace(folder / key)

    def publish(self, key: str, made: Path, facts: dict[str, Any]) -> bytes:
        """Turn a build's folder into the entry of a key; returns its cubin.

        Args:
            key: the entry's name.
            made: the folder, in a workspace of this cache, that holds the cubin.
            facts: what :class:`Entry` says of it: name, arch, compiler, seconds.
        """
        image = (made / _IMAGE).read_bytes()
        facts = {**facts, "sha256": hashlib.sha256(image).hexdigest(), "bytes": len(image)}
        (made / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for file in made.iterdir():
            _sync(file)
        _sync(made)
        place = _place(self.root, key)
        place.parent.mkdir(parents=True, exist_ok=True)
        _move_in(made, place)
        _sync(place.parent)
        return image

    def keep_failed(self, key: str, made: Path) -> Path:
        """Keep the source and the log of a kernel that does not compile; returns their folder."""
        place = self.root / "failed" / key
        place.mkdir(parents=True, exist_ok=True)
        for name in ("kernel.cu", "build.log"):
            if (made / name).exists():
                (made / name).replace(place / name)
        return place

    def prune(
        self, *, max_bytes: int | None = None, unused_days: float | None = None
    ) -> list[Entry]:
        """Remove entries, and whatever failed builds left.

        Args:
            max_bytes: remove those unused for longest until the rest is no larger.
            unused_days: remove those that nobody used for so long.

        Returns:
            The entries that were removed.
        """
        entries = [e for e in self.entries() if e.folder.is_relative_to(self.root)]
        size, now = sum(e.bytes for e in entries), time.time()
        removed = []
        for entry in entries:
            old = unused_days is not None and now - entry.used > unused_days * 86400
            if old or (max_bytes is not None and size > max_bytes):
                removed.append(entry)
                size -= entry.bytes
        with self.workspace() as tmp:
            for entry in removed:
                with contextlib.suppress(FileNotFoundError):
                    entry.folder.rename(tmp / entry.key)
        for name in ("failed", "rendered"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        return removed


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


def _place(root: Path, key: str) -> Path:
    return root / "kernels" / key[:2] / key


def _image(folder: Path) -> bytes | None:
    """The cubin of an entry if it is whole; notes that it was used."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        image = (folder / _IMAGE).read_bytes()
        if facts["sha256"] != hashlib.sha256(image).hexdigest():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / _FACTS)
    return image


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


def _user_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("attnhub", appauthor=False)


def _writable(home: Path) -> Path:
    """``home``, if files can be made there, whatever its mode bits say; else the fallback."""
    try:
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home / "tmp"):
            return home
    except OSError as error:
        root = _fallback() or Path(tempfile.mkdtemp(prefix="attnhub-cache-"))
        warnings.warn(
            f"the kernel cache {home} cannot be written ({error.strerror}); kernels are kept in "
            f"{root}. Set ATTNHUB_CACHE_DIR to a folder that can be written",
            CacheWarning,
            stacklevel=3,
        )
        return root


def _fallback(*, make: bool = True) -> Path | None:
    """This user's folder under the temporary one; None if it is not there or not safe to trust.

    Others can write where it lies: what is not ours alone might hold somebody else's code.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    folder = Path(tempfile.gettempdir()) / f"attnhub-cache-{user}"
    try:
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    private = folder.is_dir() and not folder.is_symlink() and not found.st_mode & 0o077
    return folder if private and (found.st_uid == user or os.name == "nt") else None


def _sync(path: Path) -> None:
    """Have the disk hold what was written, so that no power cut leaves half an entry."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
