"""For authors of backends: conformance, comparison, generators, faults, kernel gates, benchmarks.

The names below load on first use, as the pytest plugin in this package must cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Case": "attnhub.testing.conformance",
    "Mismatch": "attnhub.testing.compare",
    "Nonconformance": "attnhub.testing.conformance",
    "Tolerance": "attnhub.testing.tolerance",
    "assert_close": "attnhub.testing.compare",
    "judge": "attnhub.testing.compare",
    "random_tensor": "attnhub.testing.generators",
    "seeded": "attnhub.testing.generators",
    "suite": "attnhub.testing.conformance",
}

__all__ = [
    "Case",
    "Mismatch",
    "Nonconformance",
    "Tolerance",
    "assert_close",
    "judge",
    "random_tensor",
    "seeded",
    "suite",
]

if TYPE_CHECKING:
    from attnhub.testing.compare import Mismatch, assert_close, judge
    from attnhub.testing.conformance import Case, Nonconformance, suite
    from attnhub.testing.generators import random_tensor, seeded
    from attnhub.testing.tolerance import Tolerance


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'attnhub.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
