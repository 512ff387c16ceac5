"""What this device can do at best, measured in the run whose rows quote it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from attnhub.core.problem import Work
from attnhub.testing.timing import copy_ceiling, matmul_ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The resource that limits a piece of work, and the least time it can take."""

    metric: str
    unit: str
    amount: float
    best_us: float

    def rate(self, us: float) -> float:
        """``amount`` a second, in ``unit``, of a run that took ``us``."""
        return self.amount / us


class Ceiling:
    """Bandwidth of a large copy and rate of a large matrix product, each measured on first use."""

    def __init__(self, device: str) -> None:
        self._device = device

    @functools.cached_property
    def gb_s(self) -> float:
        """GB/s, read plus written."""
        return copy_ceiling(self._device)

    @functools.cached_property
    def tflop_s(self) -> float:
        """TFLOP/s of a square matrix product."""
        return matmul_ceiling(self._device)

    def bound(self, work: Work) -> Bound | None:
        """What limits ``work`` here; None if it states neither bytes nor operations."""
        # Over microseconds: GB/s and TFLOP/s.
        gigabytes, tera = work.bytes / 1e3, work.flops / 1e6
        bounds = []
        if gigabytes:
            best = gigabytes / self.gb_s
            bounds.append(Bound(metric="bandwidth", unit="GB/s", amount=gigabytes, best_us=best))
        if tera:
            best = tera / self.tflop_s
            bounds.append(Bound(metric="throughput", unit="TFLOP/s", amount=tera, best_us=best))
        return max(bounds, key=lambda b: b.best_us, default=None)
