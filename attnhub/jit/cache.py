"""The user's store of compiled kernels, shared by processes and machines of equal content.

Beside what every :class:`~attnhub.jit.store.Store` holds, a build's folder has ``kernel.cu`` and
``build.log``, and the cache

    failed/<key>/    sources and logs of kernels that did not compile
    locks/           one lock per key
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnhub.core.env import environment
from attnhub.jit.errors import CacheWarning
from attnhub.jit.store import Entry, Store

if TYPE_CHECKING:
    from filelock import BaseFileLock


class Cache:
    """The kernels kept on this machine.

    Args:
        folder: where; by default as ATTNHUB_CACHE_DIR says, or the user's cache folder. If it
            cannot be written, what is there is still read, and new kernels go to a folder under the
            temporary one, with a warning.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        folder = folder or environment().cache_dir
        self.home = Path(folder) if folder else _user_folder()
        self._root: Path | None = None

    @property
    def root(self) -> Path:
        """The folder that is written: ``home``, or the fallback. Decided by the first who asks."""
        if self._root is None:
            self._root = _writable(self.home)
        return self._root

    def _stores(self) -> list[Store]:
        """Where to read; reading alone does not decide where to write."""
        other = self._root or _fallback(make=False)
        return list(map(Store, dict.fromkeys([self.home, *([other] if other else [])])))

    # -- reading ---------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """The cubin under a key; None if it is absent or not what its hash says."""
        for store in self._stores():
            if image := store.load(key):
                store.note_use(key)
                return image
        return None

    def load_of_any_compiler(self, content: str) -> tuple[str, bytes] | None:
        """The key and the cubin of what some compiler made of a content."""
        for store in self._stores():
            for key in store.with_content(content):
                if image := store.load(key):
                    store.note_use(key)
                    return key, image
        return None

    def rendered(self, key: str) -> str | None:
        """The rendered source under a template key."""
        found = (store.rendered(key) for store in self._stores())
        return next((body for body in found if body is not None), None)

    def entries(self) -> list[Entry]:
        """Every whole entry, the one unused for longest first."""
        found = [entry for store in self._stores() for entry in store.entries()]
        return sorted(found, key=lambda e: e.used)

    def serves(self, arch: str) -> bool:
        """As :meth:`Store.serves`."""
        return any(store.serves(arch) for store in self._stores())

    # -- writing ---------------------------------------------------------------------------

    def lock(self, key: str) -> BaseFileLock:
        """The lock of a key, not yet taken."""
        from filelock import FileLock

        folder = self.root / "locks"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{key}.lock")

    def workspace(self) -> AbstractContextManager[Path]:
        """A temporary folder from which :meth:`publish` takes entries."""
        return Store(self.root).workspace()

    def remember(self, key: str, body: str) -> None:
        """Keep a rendered source, so that the next process need not render."""
        # Without it the next process renders, so nothing is worth failing for.
        with contextlib.suppress(OSError):
            Store(self.root).remember(key, body)

    def publish(self, key: str, made: Path, facts: dict[str, Any]) -> bytes:
        """Turn a build's folder into the entry of a key; as :meth:`Store.publish`."""
        return Store(self.root).publish(key, made, facts)

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
