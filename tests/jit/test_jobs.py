"""How many compilers run at once, on machines made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnhub.jit import jobs
from attnhub.jit.build import compile_kernels
from attnhub.jit.cache import Cache
from tests.jit.fakes import FakeCompiler, spec

GB = 1 << 30


def _machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _meminfo(free: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: 999999999 kB\nMemAvailable:  {free // 1024} kB\n"}


V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 16, id="no proc: cores alone"),
        pytest.param(_meminfo(64 * GB), 16, id="plenty of memory"),
        pytest.param(_meminfo(3 * GB), 3, id="memory caps"),
        pytest.param(_meminfo(GB // 2), 1, id="at least one"),
        pytest.param(
            _meminfo(64 * GB)
            | V2
            | {
                "sys/fs/cgroup/job/memory.max": f"{8 * GB}",
                "sys/fs/cgroup/job/memory.current": f"{6 * GB}",
                "sys/fs/cgroup/job/step/memory.max": "max",
                "sys/fs/cgroup/job/step/memory.current": f"{GB}",
            },
            2,
            id="the group above has the limit",
        ),
        pytest.param(
            V2
            | {
                "sys/fs/cgroup/memory.max": f"{8 * GB}",
                "sys/fs/cgroup/memory.current": f"{7 * GB}",
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {4 * GB}\n",
            },
            5,
            id="a container that sees its group as the root; unused file pages are free",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GB}",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
            },
            4,
            id="control groups of version 1",
        ),
        pytest.param(
            V2 | {"sys/fs/cgroup/job/cpu.max": "250000 100000\n"}, 2, id="a quota of 2.5 cores"
        ),
        pytest.param(V2 | {"sys/fs/cgroup/job/cpu.max": "max 100000\n"}, 16, id="no quota"),
    ],
)
def test_limit(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    root = _machine(tmp_path, files)
    assert jobs.limit(root=root) == expected
    assert jobs.limit(2, root=root) == min(2, expected)


def test_memory_caps_the_compiler(
    cache: Cache, fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "cores", lambda **_: 16)
    monkeypatch.setattr(jobs, "available_memory", lambda **_: 3 * GB)
    compile_kernels([spec()], cache=cache, compiler=fake)
    assert fake.journal.read_text() == "2.0 jobs=3\n"
