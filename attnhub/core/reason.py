"""Why a backend does not fit: a value with a stable code, not a sentence in a log."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(str, enum.Enum):
    """Stable identifiers, safe to match on in programs and tests."""

    DEVICE = "device"  # kind or architecture of the device
    FIELD = "field"  # a problem field has a value outside the capability
    RULE = "rule"  # a rule over several fields at once
    VERSION = "version"  # torch, driver or toolkit bounds
    IMPORT = "import"  # the backend's module could not be imported
    PROBE = "probe"  # the backend looked at this machine and declined
    POLICY = "policy"  # an override excludes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One unmet need of one backend.

    ``field`` names the problem field (or device attribute), ``actual`` what the problem has,
    ``accepted`` what the backend takes, ``hint`` the nearest change that would fit. Of a policy
    they are ``"backend"``, its name, and the rule that excludes it.
    """

    code: Code
    field: str
    actual: str
    accepted: str
    hint: str = ""

    def __str__(self) -> str:
        if self.code is Code.POLICY:
            return f"fits, but excluded by {self.accepted}"
        text = f"{self.field} is {self.actual}, needs {self.accepted}"
        return f"{text} ({self.hint})" if self.hint else text
