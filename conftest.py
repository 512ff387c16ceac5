"""Settings for every test here, and what the markers ``gpu`` and ``gates`` mean."""

from __future__ import annotations

import os

import pytest
import torch

from attnhub.testing.pytest_plugin import skip_without_gpu

if not torch.cuda.is_available():
    # Triton reads this once, when it is imported: its kernels then run on the CPU, in Python.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let ``-m gpu`` and ``-m gates`` select the cases of attnhub's own suites too."""
    for marker in ("gpu", "gates"):
        if item.get_closest_marker(f"attnhub_{marker}"):
            item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where there is no GPU, or only an older one."""
    skip_without_gpu(item, "gpu")
