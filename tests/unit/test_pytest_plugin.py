"""What is loaded into every pytest session must leave other projects' tests alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnhub.testing.pytest_plugin import missing_gpu
from tests.unit.repo_tree import ROOT


@pytest.mark.parametrize("sm", [0, 999], ids=["any GPU", "a GPU of the future"])
def test_what_is_missing_is_said(sm: int) -> None:
    why = missing_gpu(sm)
    if not torch.cuda.is_available():
        assert why == "needs a GPU, and torch finds none here"
    elif sm:
        assert why.startswith("needs a GPU of sm_999 or later")
    else:
        assert why == ""


def _session(folder: Path, source: str, *options: str) -> str:
    """Output of pytest over one file of a project that has attnhub installed, and is not it."""
    (folder / "test_theirs.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: their own meaning\n")
    plugin = ("-p", "attnhub.testing.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--strict-markers", *plugin, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    return done.stdout


def test_a_marker_of_another_project_keeps_its_meaning(tmp_path: Path) -> None:
    source = "import pytest\n\n@pytest.mark.gpu(device='any')\ndef test_theirs(): pass\n"
    assert "1 passed" in _session(tmp_path, source)


def test_nothing_is_imported_for_their_tests(tmp_path: Path) -> None:
    source = (
        "import sys\n\ndef test_theirs(): assert not {'torch', 'attnhub.core'} & {*sys.modules}\n"
    )
    assert "1 passed" in _session(tmp_path, source)


def test_the_marker_of_the_suite_skips_with_a_reason(tmp_path: Path) -> None:
    source = "import pytest\n\n@pytest.mark.attnhub_gpu(sm=999)\ndef test_ours(): pass\n"
    assert "1 skipped" in _session(tmp_path, source)


def test_the_gpu_marker_of_this_repository_selects_the_suite_too(
    request: pytest.FixtureRequest,
) -> None:
    item = request.node
    item.add_marker("attnhub_gpu")
    request.config.hook.pytest_itemcollected.call_extra([], {"item": item})
    assert item.get_closest_marker("gpu") is not None
