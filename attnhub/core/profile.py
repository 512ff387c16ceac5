"""Measured times that ranking prefers to any cost model.

A profile is a JSON file: ``{"device": NAME, "rows": [{"backend", "op", "signature", "us"}]}``,
where ``signature`` is ``Problem.signature()`` of the measured problem (facts and bucketed sizes).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnhub.core.backend import Estimate
from attnhub.core.problem import Problem
from attnhub.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Times in microseconds by (backend, op, problem signature), of one kind of device."""

    device: str = ""
    times: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile file.

        Raises:
            InvalidArgument: the file is missing or not a profile.
        """
        try:
            data = json.loads(path.read_text())
            rows = {(r["backend"], r["op"], r["signature"]): float(r["us"]) for r in data["rows"]}
            return cls(device=data["device"], times=rows, source=path.name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(
                f"{path} is not a profile ({type(error).__name__}: {error}); expected JSON with "
                '"device" and "rows" of backend, op, signature, us'
            ) from error

    def save(self, path: Path) -> None:
        """Write a file that :meth:`load` reads."""
        keys = ("backend", "op", "signature")
        rows = [{**dict(zip(keys, k, strict=True)), "us": us} for k, us in self.times.items()]
        path.write_text(json.dumps({"device": self.device, "rows": rows}, indent=1))

    def estimate(self, backend: str, problem: Problem) -> Estimate | None:
        """The measured time of this problem on this kind of device, if there is one."""
        if not self.times or problem.device.name != self.device:
            return None
        us = self.times.get((backend, problem.op, problem.signature()))
        return None if us is None else Estimate(us=us, source="measured", detail=self.source)


@functools.lru_cache(maxsize=4)
def load(path: str) -> Profile:
    """The profile at ``path`` (cached); an empty one for an empty path."""
    return Profile.load(Path(path)) if path else Profile()
