"""`attnhub.plugin` holds all that a plugin needs, and loads torch for none of it in advance."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from attnhub import plugin
from tests.unit.repo_tree import ROOT


@pytest.mark.parametrize("name", sorted(plugin.__all__))
def test_every_name_is_there_and_is_what_its_module_has(name: str) -> None:
    value = getattr(plugin, name)
    if name in plugin._LAZY:
        assert value is getattr(importlib.import_module(plugin._LAZY[name]), name)
    assert name in dir(plugin)


def test_every_lazy_name_is_public() -> None:
    assert set(plugin._LAZY) <= set(plugin.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'attnhub\.plugin' has no attribute 'Capabilty'"):
        plugin.Capabilty  # noqa: B018


def test_what_a_manifest_needs_loads_no_torch_and_what_a_planner_needs_does_when_named() -> None:
    eager = sorted(set(plugin.__all__) - set(plugin._LAZY))
    code = (
        f"import sys\nfrom attnhub.plugin import {', '.join(eager)}\n"
        "before = 'torch' in sys.modules\n"
        f"from attnhub.plugin import {', '.join(sorted(plugin._LAZY))}\n"
        "print(before, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert done.stdout.split() == ["False", "True"]
