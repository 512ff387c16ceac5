"""Notices: who is told of a decision. Observers of plugins, and a user who waits needlessly."""

from __future__ import annotations

import warnings

from attnhub.core.decision import Decision, Rejection
from attnhub.core.problem import Problem, fact_fields
from attnhub.core.reason import Code
from attnhub.core.recent import Once
from attnhub.core.registry import Registry
from attnhub.errors import PerformanceWarning

#: A blocked backend must look this many times faster before a warning is worth its noise.
WARN_RATIO = 2.0
#: How many decisions and warnings are remembered, so as to tell of each once.
_REMEMBERED = 4096


class Notices:
    """Tells of each decision once, as long as it is remembered."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told = Once(_REMEMBERED)
        self._warned = Once(_REMEMBERED)

    def tell(self, decision: Decision, problem: Problem, required: str) -> None:
        """Tell the hooks, and warn if a fixable reason blocks a much faster backend.

        ``required`` is the backend that somebody asked for by name, who then needs no warning.
        """
        if not self._told.first(hash(decision)):
            return
        self._registry.observe(decision)
        best, chosen = _blocked(decision, problem), decision.chosen
        if best is None or chosen is None or problem.device.type == "cpu":
            return  # on a CPU every run is a reference run; there is nothing to warn of
        # Sizes and times vary from step to step; what is to be done about it does not.
        key = (problem.op, decision.device, chosen.name, best.name, str(best.reasons[0]))
        if required == chosen.name or not self._warned.first(key):
            return
        warnings.warn(
            f"{problem.op}: {chosen.name} ({chosen.estimate}) was chosen; {best.name} "
            f"({best.estimate}) is blocked because {best.reasons[0]}",
            PerformanceWarning,
            stacklevel=4,
        )


def _blocked(decision: Decision, problem: Problem) -> Rejection | None:
    """The fastest rejected backend, if it beats the chosen one by WARN_RATIO."""
    chosen = decision.chosen
    if chosen is None or chosen.estimate.us is None:
        return None
    structural = {n for n, f in fact_fields(type(problem)).items() if f.metadata["structural"]}
    limit = chosen.estimate.us / WARN_RATIO
    faster = {
        r.estimate.us: r
        for r in reversed(decision.rejected)
        if r.estimate is not None
        and r.estimate.us is not None
        and r.estimate.us < limit
        and all(x.code is not Code.POLICY and x.field not in structural for x in r.reasons)
    }
    return faster[min(faster)] if faster else None
