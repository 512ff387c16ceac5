"""Settings for every test here, and what the ``gpu`` marker means."""

from __future__ import annotations

import os

import pytest
import torch

from attnhub.testing.pytest_plugin import skip_without_gpu

if not torch.cuda.is_available():
    # Triton reads this once, when it is imported: its kernels then run on the CPU, in Python.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let ``-m gpu`` select the cases of the conformance suite too."""
    if item.get_closest_marker("attnhub_gpu"):
        item.add_marker("gpu")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where there is no GPU, or only an older one."""
    skip_without_gpu(item, "gpu")
