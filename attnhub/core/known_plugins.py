"""Plugins the core knows by name, so that one that is not installed can still be pointed at."""

from __future__ import annotations

import fnmatch
import functools
import json
from dataclasses import dataclass
from importlib import resources

from attnhub.core.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlugin:
    """One row of ``known_plugins.json``.

    ``status`` is ``"released"``, ``"source"`` (in AttnHub's repository only) or ``"planned"``.
    """

    backend: str
    package: str
    ops: tuple[str, ...]
    summary: str
    status: str
    sm_min: int = 0
    sm_max: int = 999

    def serves(self, op: str, device: Device) -> bool:
        """Whether it has something for this op on this device."""
        fits = device.sm is not None and self.sm_min <= device.sm <= self.sm_max
        return fits and any(fnmatch.fnmatchcase(op, pattern) for pattern in self.ops)

    @property
    def install(self) -> str:
        """What to do to get it."""
        if self.status == "planned":
            return f"not installed: {self.package} ({self.summary}) is planned, not yet released"
        if self.status == "source":
            where = f"pip install -e plugins/{self.backend} in AttnHub's repository"
            return f"not installed: {self.package} ({self.summary}); {where}"
        return f"not installed: pip install {self.package} ({self.summary})"


@functools.lru_cache(maxsize=1)
def known_plugins() -> dict[str, KnownPlugin]:
    """The rows by backend name."""
    text = resources.files("attnhub.core").joinpath("known_plugins.json").read_text()
    rows = [KnownPlugin(**{**row, "ops": tuple(row["ops"])}) for row in json.loads(text)]
    return {row.backend: row for row in rows}
