"""Policy: what overrides leave of the backends that fit, and how decisions tell of it."""

from __future__ import annotations

from attnhub.core.backend import Backend
from attnhub.core.judge import reason
from attnhub.core.options import Override
from attnhub.core.reason import Code, Reason

#: Backends that do not fit, by name, with why.
Rejected = dict[str, tuple[Backend, tuple[Reason, ...]]]


def apply(
    rules: list[Override], fitting: list[Backend], rejected: Rejected
) -> tuple[list[Backend], list[Override]]:
    """The backends that the rules leave, and the rules that had a say, the deciding one first."""
    names = {b.name for b in fitting}
    deciding = (r for r in rules if r.mode == "require" or r.backend in names)
    decided = next((r for r in deciding if r.mode != "deny"), None)
    required = decided if decided is not None and decided.mode == "require" else None
    denied = [r for r in rules if r.mode == "deny"]
    kept = []
    for backend in fitting:
        against = [r for r in denied if r.backend == backend.name]
        if required is not None and backend.name != required.backend:
            against.append(required)
        if against:
            rejected[backend.name] = (
                backend,
                (reason(Code.POLICY, "backend", backend.name, str(against[0])),),
            )
        else:
            kept.append(backend)
    # The rule that decided comes first; a preference that did not fit had no say.
    return kept, [*([] if decided is None else [decided]), *denied]


def say(rule: Override, used: list[Override], rejected: Rejected, serving: set[str]) -> str:
    """A rule as decisions list it, with what became of it."""
    if rule in used:
        return str(rule)
    if rule.backend not in serving:
        return f"{rule} (does not serve this op)"
    reasons = rejected[rule.backend][1] if rule.backend in rejected else ()
    unfit = any(r.code is not Code.POLICY for r in reasons)
    return f"{rule} ({'does not fit' if unfit and rule.mode == 'prefer' else 'overridden'})"
