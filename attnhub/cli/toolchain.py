"""What ``attnhub doctor`` finds of compilers, the driver and kernels built ahead of time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attnhub import jit
from attnhub.core.registry import Registry
from attnhub.errors import AttnHubError
from attnhub.jit import driver as drivers
from attnhub.jit import prebuilt

_MODULE = Path("/proc/driver/nvidia/version")


def compilers() -> list[dict[str, str]]:
    """Each compiler of CUDA kernels: where it was found, or why it cannot be used."""
    return [
        {
            "name": found.name,
            "version": found.version,
            "path": found.path,
            "headers": found.headers,
            "how": found.how,
            "why": found.why,
        }
        for found in jit.discover()
    ]


def driver() -> dict[str, str]:
    """The newest CUDA that the driver runs and its own version, or why there is none."""
    try:
        major, minor = divmod(drivers.get().version, 1000)
    except jit.DriverError as error:
        return {"cuda": "", "version": _module_version(), "why": str(error)}
    return {"cuda": f"{major}.{minor // 10}", "version": _module_version(), "why": ""}


def _module_version() -> str:
    """The version of the kernel's module; empty where there is none, or where it does not say."""
    try:
        text = _MODULE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"\s(\d+\.\d[\d.]*)", text)
    return match[1] if match else ""


def ready_made(registry: Registry, problems: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The folders of kernels built ahead of time; each damaged kernel is a problem."""
    try:
        stores = prebuilt.stores(registry.packages())
    except AttnHubError as error:
        problems.append(("ATTNHUB_CUBIN_DIR", str(error)))
        return []
    found = []
    for store in stores:
        entries = store.entries()
        problems += [
            (f"kernel {e.name!r} for {e.arch}", f"{e.folder} is damaged; install it anew")
            for e in entries
            if store.load(e.key) is None
        ]
        archs = sorted({entry.arch for entry in entries})
        found.append({"folder": str(store.root), "kernels": len(entries), "archs": archs})
    return found
