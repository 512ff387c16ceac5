from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from attnhub.core.registry import Registry
from attnhub.plugin import Backend, Capability, Efficiency
from attnhub.testing.faults import Manifest
from tests.testing.gate_kernels import KernelFolder
from tests.testing.liars import Register


@pytest.fixture
def register(isolated_registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Register:
    """Add a backend "liar" of attention, or of another op."""

    def add(planner: Any, capability: Any = None, **changes: Any) -> None:
        module = types.ModuleType("attnhub_test_liar")
        module.planner = planner
        monkeypatch.setitem(sys.modules, module.__name__, module)
        backend = Backend(
            name="liar",
            op="attention",
            capability=capability or Capability(complete=True, devices=("cpu",)),
            cost=Efficiency(compute=1, memory=1),
            load="attnhub_test_liar:planner",
        )
        plugin = Manifest(dataclasses.replace(backend, **changes))
        isolated_registry.register(plugin, "liar")

    return add


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelFolder:
    """A package for the kernels that a test compiles."""
    folder = tmp_path / "site" / "kernels_of_a_test"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder.parent)
    return KernelFolder(folder=folder)
