"""Pytest plugin of attnhub: a fixture for tests of plugins, and the markers of its own suites.

It is loaded in every pytest session where attnhub is installed, so it imports nothing at load, and
touches no test but those that ask for it: ``attnhub_gpu`` marks cases of the conformance suite, and
``attnhub_gates`` those of attnhub.testing.gates, whose table ends the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attnhub.plugin import Registry
    from attnhub.testing.emulator import EmulatedGpu

_MARKERS = (
    "attnhub_gpu(sm=0): needs a GPU, of compute capability 9.0 for sm=90; skipped without one",
    "attnhub_gates: compiles a kernel for real and checks what became of it; needs no GPU",
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``attnhub_gpu`` where there is no GPU, or only an older one."""
    skip_without_gpu(item, "attnhub_gpu")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the table of the gates, if any ran; with xdist, those of every process."""
    rows = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == "attnhub_gate"
    ]
    if rows:
        from attnhub.testing.gates import table

        terminalreporter.section("gates")
        for line in table.lines(rows):
            terminalreporter.line(line)


def skip_without_gpu(item: pytest.Item, marker: str) -> None:
    """Skip a test that ``marker(sm=0)`` says this machine cannot run."""
    for mark in item.iter_markers(marker):
        if why := missing_gpu(*mark.args, **mark.kwargs):
            pytest.skip(why)


def missing_gpu(sm: int = 0) -> str:
    """What is missing here of a GPU of at least this compute capability, or ``""``."""
    import torch

    if not torch.cuda.is_available():
        return "needs a GPU, and torch finds none here"
    major, minor = torch.cuda.get_device_capability(0)
    here = 10 * major + minor
    return f"needs a GPU of sm_{sm} or later, this one is sm_{here}" if here < sm else ""


@pytest.fixture
def emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> EmulatedGpu:
    """A GPU in the kernel emulator, as the device "cpu"; see attnhub.testing.emulator."""
    from attnhub.testing.emulator import EmulatedGpu

    gpu = EmulatedGpu()
    gpu.install(monkeypatch)
    return gpu


@pytest.fixture
def isolated_registry() -> Iterator[Registry]:
    """A registry with the built-in backends only, shared by every call until the test ends.

    Installed plugins are left out, and the environment is read anew.

    Example::

        def test_mine(isolated_registry):
            isolated_registry.register(my_manifest, "mine")
            assert attnhub.explain("attention", device="h100", ...).chosen.name == "mine"
    """
    from attnhub.plugin import isolated

    with isolated() as registry:
        yield registry
