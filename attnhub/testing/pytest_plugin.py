"""Pytest plugin of attnhub: a fixture for tests of plugins, and the ``gpu`` marker.

It is loaded in every pytest session where attnhub is installed, so it imports nothing at load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attnhub.plugin import Registry

_MARKER = (
    "gpu(sm=0): needs a GPU, of at least this compute capability (90 for 9.0); skipped without one"
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where there is no GPU, or only an older one."""
    for marker in item.iter_markers("gpu"):
        if why := _missing(*marker.args, **marker.kwargs):
            pytest.skip(why)


def _missing(sm: int = 0) -> str:
    import torch

    if not torch.cuda.is_available():
        return "needs a GPU, and torch finds none here"
    major, minor = torch.cuda.get_device_capability(0)
    here = 10 * major + minor
    return f"needs a GPU of sm_{sm} or later, this one is sm_{here}" if here < sm else ""


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
