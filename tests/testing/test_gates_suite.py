"""A whole test_gates.py: its cases, its table at the end, and what a machine cannot compile."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter

import pytest

from attnhub.jit import Finding, discover
from attnhub.testing.gates import Build, Gate, cases, suite, table
from tests.testing import gate_kernels
from tests.testing.gate_kernels import KernelFolder
from tests.unit.repo_tree import ROOT

_SESSION = """\
from pathlib import Path

from attnhub.testing.gates import Gate, suite
from tests.testing.gate_kernels import CLEAN, KernelFolder

kernel = KernelFolder(folder=Path({folder!r})).spec(CLEAN)

test_clean = suite([(kernel, Gate(census={{"LDG.64": 1}}))])
test_small = suite([(kernel, Gate(max_registers=1))])
"""


def _session(kernels: KernelFolder, *options: str) -> str:
    """What pytest prints of two suites in a project that has attnhub installed, and is not it."""
    folder = kernels.folder.parents[1]
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_gates.py").write_text(_SESSION.format(folder=str(kernels.folder)))
    plugins = (
        "-p",
        "attnhub.testing.pytest_plugin",
        "-p",
        "xdist.plugin",
        "-p",
        "no:cacheprovider",
    )
    path = os.pathsep.join([str(ROOT), str(kernels.folder.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--strict-markers", *plugins, *options, "test_gates.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_session_ends_with_a_table_of_all_its_kernels(kernels: KernelFolder) -> None:
    if not all(finding.compiler for finding in discover()):
        pytest.skip("needs nvcc and NVRTC")
    shown = _session(kernels, "-n", "2")
    assert "2 failed, 2 passed" in shown
    assert "max_registers=1: it takes" in shown
    header, *rows = shown.partition("= gates =")[2].splitlines()[1:6]
    assert header.split()[:4] == ["kernel", "arch", "compiler", "registers"]
    assert [row.split()[:3] for row in rows] == [
        *(["k", "sm_80", "nvcc"], ["k", "sm_80", "nvcc"]),
        *(["k", "sm_80", "nvrtc"], ["k", "sm_80", "nvrtc"]),
    ]
    assert sum("LDG.64 1" in row for row in rows) == 2


def test_the_marker_leaves_them_out(kernels: KernelFolder) -> None:
    shown = _session(kernels, "-m", "not attnhub_gates")
    assert "4 deselected" in shown
    assert "= gates =" not in shown


def _absent() -> tuple[Finding, ...]:
    return (Finding(name="nvrtc", why="no libnvrtc"), Finding(name="nvcc", why="no nvcc"))


def test_a_machine_without_compilers_says_so(
    kernels: KernelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "discover", _absent)
    rows: list[table.Row] = []
    run = suite([(kernels.spec(gate_kernels.CLEAN), Gate())])
    [mark] = [m for m in run.pytestmark if m.name == "parametrize"]
    for parameters in mark.args[1]:
        with pytest.raises(pytest.skip.Exception) as skipped:
            run(parameters.values[0], lambda name, row: rows.append(row))
        assert str(skipped.value) == f"no {'libnvrtc' if 'nvrtc' in parameters.id else 'nvcc'}"
    assert table.lines(rows) == [
        "skipped: 1 by nvcc: no nvcc",
        "skipped: 1 by nvrtc: no libnvrtc",
        "no kernel was compiled, so nothing was checked",
    ]


def test_ids_name_kernel_arch_and_compiler(kernels: KernelFolder) -> None:
    run = suite([(kernels.spec(gate_kernels.CLEAN, arch=a), Gate()) for a in ("sm_80", "sm_90a")])
    [mark] = [m for m in run.pytestmark if m.name == "parametrize"]
    assert [parameters.id for parameters in mark.args[1]] == [
        *("k-sm_80-nvrtc", "k-sm_80-nvcc", "k-sm_90a-nvrtc", "k-sm_90a-nvcc")
    ]


def test_rows(kernels: KernelFolder) -> None:
    made = Build(
        spec=kernels.spec(gate_kernels.CLEAN),
        compiler="nvrtc",
        registers=9,
        smem=2048,
        stack=0,
        spill_stores=4,
        spill_loads=8,
        barriers=1,
        notices=(),
        instructions=Counter({"HMMA.16816.F32": 64, "LDL": 2}),
        cpu_seconds=2.5,
        image=bytes(1250),
        log="",
    )
    unread = dataclasses.replace(made, compiler="nvcc", instructions=None, no_instructions="why")
    gate = Gate(census={"HMMA": 64, "LDSM": 4}, cpu_seconds=2.0)
    assert table.lines([table.row(made, gate), table.row(unread, Gate())]) == [
        "kernel  arch   compiler  registers  smem  spills        CPU s  cubin kB  instructions",
        "k       sm_80  nvcc              9  2048      12         2.50       1.2  not counted: why",
        "k       sm_80  nvrtc             9  2048      12  2.50 (over)       1.2  HMMA 64, LDL 2",
    ]


def test_the_gates_marker_of_this_repository_selects_suites_too(
    request: pytest.FixtureRequest,
) -> None:
    item = request.node
    item.add_marker("attnhub_gates")
    request.config.hook.pytest_itemcollected.call_extra([], {"item": item})
    assert item.get_closest_marker("gates") is not None
