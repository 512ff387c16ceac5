"""Every environment variable that is read, once; an unknown ``ATTNHUB_*`` is an error."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from attnhub.errors import UnknownName

#: Name -> what it does. ``docs/environment.md`` lists the same table (a test compares them).
VARIABLES: dict[str, str] = {
    "ATTNHUB_BACKEND": "comma-separated overrides, `[op=]name`; prefix `prefer:` or `deny:`",
    "ATTNHUB_PLUGINS": "comma-separated plugins to load; with a leading `-`, plugins to skip",
    "ATTNHUB_CACHE_DIR": "folder of what is compiled and tuned, instead of the user's cache folder",
    "ATTNHUB_CUBIN_DIR": "folder of kernels built ahead of time by `attnhub warmup --output`",
    "ATTNHUB_PROFILE": "path of a measured profile (JSON) that ranking prefers to cost models",
    "ATTNHUB_COMPILER": "`nvrtc` or `nvcc`, instead of the first that is found",
    "CUDA_HOME": "CUDA toolkit whose compilers come before all others",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The values found, empty where unset."""

    backend: str
    cache_dir: str
    compiler: str
    cubin_dir: str
    cuda_home: str
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
    found = {name: os.environ.get(name, "").strip() for name in VARIABLES}
    return Environment(**{n.removeprefix("ATTNHUB_").lower(): text for n, text in found.items()})
