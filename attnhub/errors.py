"""Every exception AttnHub raises on purpose.

    AttnHubError
    ├── InvalidArgument (ValueError)      a value, shape, dtype or device the call cannot take
    ├── TraceError (TypeError)            a user's score_mod, mask_mod, ... that cannot be traced
    ├── UnknownName (LookupError)         a backend, op, device or variable nobody registered
    ├── DispatchError (RuntimeError)      no plan could be made; carries the Decision
    │   ├── BackendUnsupported            a required backend cannot serve this problem
    │   └── NoBackend                     no registered backend can
    ├── PluginError (RuntimeError)        a plugin could not be loaded or broke its contract
    ├── KernelError (RuntimeError)        a backend's kernel cannot be made, loaded or launched
    ├── IndexOutOfRange (IndexError)      a mod reads a tensor parameter outside its shape
    └── NotPlanned (RuntimeError)         run() before plan()

    PerformanceWarning (UserWarning)      a much slower choice than a blocked faster one
    PluginWarning (RuntimeWarning)        a plugin was set aside; the rest goes on

Each exception keeps its facts as attributes, so that a program can act on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnhub.core.decision import Decision


class AttnHubError(Exception):
    """Root of every exception AttnHub raises on purpose."""


class InvalidArgument(AttnHubError, ValueError):
    """A caller's value that cannot be taken: says what was given, accepted, and what to do."""


class TraceError(AttnHubError, TypeError):
    """A user's Python modification that cannot be turned into an expression graph."""


class UnknownName(AttnHubError, LookupError):
    """A name nobody registered; the message lists the nearest known ones.

    ``what`` replaces that list where it is known what the name stands for.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *, what: str = ""
    ) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        near = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        text = f"unknown {kind} {name!r}"
        if what:
            text = f"{kind} {name!r} is {what}"
        elif near:
            text += f"; did you mean {' or '.join(map(repr, near))}?"
        else:
            text += f"; known: {', '.join(self.known) or 'none'}"
        super().__init__(f"{text}{' ' + hint if hint else ''}")


class DispatchError(AttnHubError, RuntimeError):
    """No backend could be chosen; ``decision`` holds every reason of every backend."""

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(f"{message}\n{decision}")
        self.decision = decision


class BackendUnsupported(DispatchError):
    """The backend that was required here cannot serve this problem."""


class NoBackend(DispatchError):
    """No registered backend can serve this problem."""


class PluginError(AttnHubError, RuntimeError):
    """A plugin that could not be loaded or that broke its contract."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(f"plugin {plugin!r}: {message}")
        self.plugin = plugin


class KernelError(AttnHubError, RuntimeError):
    """A backend's kernel that cannot be made, loaded or launched; ``attnhub.jit`` has the kinds."""

    #: Whether another backend is an answer. Memory that is short, say, is short for every one.
    is_of_backend = True

    @property
    def brief(self) -> str:
        """What went wrong and what to do, on one line."""
        return str(self).partition("\n")[0]


class IndexOutOfRange(AttnHubError, IndexError):
    """A mod reads a tensor parameter outside its shape, for a pair that is visible."""


class NotPlanned(AttnHubError, RuntimeError):
    """``run()`` was called before ``plan()``."""


class PerformanceWarning(UserWarning):
    """A much slower backend than one that a fixable reason blocks was chosen."""


class PluginWarning(RuntimeWarning):
    """A plugin was set aside; everything else goes on."""
