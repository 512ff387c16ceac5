"""Decision: who was chosen, what it should cost, and why every other backend was not.

A value: printable, comparable, and it survives a trip through JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from attnhub.core.backend import Estimate
from attnhub.core.reason import Code, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend that fits, with its expected cost."""

    name: str
    plugin: str
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A backend that does not fit, with every reason. ``install`` is set if it is not installed."""

    name: str
    plugin: str
    reasons: tuple[Reason, ...]
    estimate: Estimate | None = None
    install: str = ""

    @property
    def unlock(self) -> str:
        """The smallest set of changes under which it would fit, or ``""``."""
        if not self.reasons or not all(r.hint for r in self.reasons):
            return ""
        hints = dict.fromkeys(r.hint.removeprefix("fits ") for r in self.reasons)
        return " and ".join(hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one dispatch; ``ranked[0]`` is ``chosen``."""

    op: str
    problem: str
    device: str
    extent: str
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    overrides: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """The backend that runs, or None if none can."""
        return self.ranked[0] if self.ranked else None

    def to_json(self) -> str:
        """A JSON text that :meth:`from_json` turns back into an equal decision."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """The decision that :meth:`to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["ranked"] = tuple(
            Candidate(**{**c, "estimate": Estimate(**c["estimate"])}) for c in data["ranked"]
        )
        data["rejected"] = tuple(_rejection(r) for r in data["rejected"])
        data["overrides"], data["notes"] = tuple(data["overrides"]), tuple(data["notes"])
        return cls(**data)

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._table(), *self._tail()])

    def _head(self) -> list[str]:
        chosen = self.chosen
        first = f"{self.op} on {self.device}"
        if chosen is None:
            first += ": no backend fits"
        else:
            first += f": {chosen.name}, {chosen.estimate} expected"
        return [first, f"  problem  {self.problem}", f"  sizes    {self.extent}"]

    def _table(self) -> list[str]:
        rows = [("backend", "expected", "verdict")]
        for i, c in enumerate(self.ranked):
            verdict = "chosen" if i == 0 else "fits, ranked below"
            if c.estimate.detail:
                verdict += f" ({c.estimate.detail})"
            rows.append((c.name, str(c.estimate), verdict))
        for r in self.rejected:
            expected = str(r.estimate) if r.estimate else "-"
            lines = [str(reason) for reason in r.reasons] + ([r.install] if r.install else [])
            rows.append((r.name, expected, lines[0] if lines else "does not fit"))
            rows += [("", "", line) for line in lines[1:]]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        return [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]

    def _tail(self) -> list[str]:
        return [f"  override {o}" for o in self.overrides] + [f"  note     {n}" for n in self.notes]


def _rejection(data: dict[str, Any]) -> Rejection:
    reasons = tuple(Reason(**{**r, "code": Code(r["code"])}) for r in data["reasons"])
    estimate = Estimate(**data["estimate"]) if data["estimate"] else None
    return Rejection(**{**data, "reasons": reasons, "estimate": estimate})
