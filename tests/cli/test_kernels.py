from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnhub.core.env import environment
from attnhub.jit import Cache
from tests.cli.conftest import Cli


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of two kernels, of 1000 and 2000 bytes, the larger used last."""
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path))
    environment.cache_clear()
    cache = Cache(tmp_path)
    for name, size in (("small", 1000), ("large", 2000)):
        with cache.workspace() as made:
            folder = made / "entry"
            folder.mkdir()
            (folder / "kernel.cubin").write_bytes(b"x" * size)
            facts = {"name": name, "arch": "sm_90a", "compiler": "nvrtc-13.0", "seconds": 0.25}
            cache.publish(name * 8, folder, facts)
    return cache


def test_list_prints_every_kernel_and_the_size(cli: Cli, kernels: Cache) -> None:
    found = cli("cache", "list", "--json").json
    assert found["folder"] == str(kernels.home)
    assert [(k["name"], k["bytes"]) for k in found["kernels"]] == [("small", 1000), ("large", 2000)]
    text = cli("cache", "list").out
    assert "small   smallsma  sm_90a  nvrtc-13.0" in text
    assert text.endswith("2 kernels, 3.0 kB\n")


def test_prune_keeps_what_was_used_last(cli: Cli, kernels: Cache) -> None:
    assert cli("cache", "prune").out == "removed 0 kernels, 0.0 kB\n"
    assert cli("cache", "prune", "--max-mb", "0.002").out == "removed 1 kernel, 1.0 kB\n"
    assert [e.name for e in kernels.entries()] == ["large"]
    removed = cli("cache", "prune", "--unused-days", "0", "--json").json["removed"]
    assert [e["name"] for e in removed] == ["large"]
    assert kernels.entries() == []


def test_doctor_names_the_compilers_and_the_folder(cli: Cli, kernels: Cache) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert [c["name"] for c in found["compilers"]] == ["nvrtc", "nvcc"]
    assert all(c["path"] or c["why"] for c in found["compilers"])
    assert found["cache"] == str(kernels.home)
    assert f"kernels are kept in {kernels.home}" in cli("doctor").out
