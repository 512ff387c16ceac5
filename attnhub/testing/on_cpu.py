"""Backends of a GPU as backends of the CPU, for machines where an emulator stands for the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attnhub.plugin import Backend, hookimpl


@dataclass(frozen=True, slots=True, eq=False)
class OnCpu:
    """A plugin that offers the same backends for the device "cpu"; each keeps its name.

    Register it in the registry of a test::

        isolated_registry.register(OnCpu.of(manifest.attnhub_backends()), "mine")
    """

    backends: tuple[Backend, ...]

    @classmethod
    def of(cls, backends: Iterable[Backend]) -> OnCpu:
        """The plugin; what the machine lacks of the GPU's tools is not asked."""
        return cls(
            tuple(
                replace(
                    backend,
                    capability=[replace(sheet, devices=("cpu",)) for sheet in backend.sheets()],
                    probe="",
                )
                for backend in backends
            )
        )

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        """What the plugin offers."""
        return list(self.backends)
