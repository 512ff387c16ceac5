"""Every environment variable of AttnHub, read once; an unknown ``ATTNHUB_*`` is an error."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from attnhub.errors import UnknownName

#: Name -> what it does. ``docs/environment.md`` lists the same table (a test compares them).
VARIABLES: dict[str, str] = {
    "ATTNHUB_BACKEND": "comma-separated overrides, `[op=]name`; prefix `prefer:` or `deny:`",
    "ATTNHUB_PLUGINS": "comma-separated plugins to load; with a leading `-`, plugins to skip",
    "ATTNHUB_CACHE_DIR": "folder of compiled kernels, instead of the user's cache folder",
    "ATTNHUB_PROFILE": "path of a measured profile (JSON) that ranking prefers to cost models",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The values found, empty where unset."""

    backend: str
    cache_dir: str
    plugins: str
    profile: str


@functools.lru_cache(maxsize=1)
def environment() -> Environment:
    """Read the environment (once a process; ``environment.cache_clear()`` reads it anew).

    Raises:
        UnknownName: a variable that starts with ``ATTNHUB_`` but that nothing reads.
    """
    for name in os.environ:
        if name.startswith("ATTNHUB_") and name not in VARIABLES:
            raise UnknownName("environment variable", name, VARIABLES, "(unset or rename it)")
    return Environment(**{name[8:].lower(): os.environ.get(name, "").strip() for name in VARIABLES})
