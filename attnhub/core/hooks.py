"""The hooks a plugin may implement (pluggy). Control plane only: none is called per launch."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from attnhub.core.backend import Backend, Op
from attnhub.core.decision import Decision

#: Version of the plugin interface. Minor: additions. Major: something a plugin relied on changed.
API_VERSION = "1.0"

hookspec = pluggy.HookspecMarker("attnhub")
hookimpl = pluggy.HookimplMarker("attnhub")


class Specs:
    """Implement any of these as module-level functions marked with ``hookimpl``."""

    @hookspec
    def attnhub_api(self) -> str:  # type: ignore[empty-body]
        """Range of :data:`API_VERSION` the plugin works with, as in ``">=1.0,<2"``.

        A plugin that leaves it out states ``">=1.0,<2"``.
        """

    @hookspec
    def attnhub_backends(self) -> Sequence[Backend]:  # type: ignore[empty-body]
        """The backends this plugin offers. Must be cheap: no torch, triton or compile."""

    @hookspec
    def attnhub_ops(self) -> Sequence[Op]:  # type: ignore[empty-body]
        """Operations of its own that this plugin adds to the hub."""

    @hookspec
    def attnhub_on_decision(self, decision: Decision) -> None:
        """Called once for each new decision that leads to a plan (logging, telemetry)."""
