"""The suite of compile costs: that it measures what it says, not how fast this machine is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnhub.cli import suites
from attnhub.cli.suites import jit, process
from attnhub.core.device import named
from attnhub.jit import compilers
from attnhub.jit.compilers import Compiler
from attnhub.jit.errors import NoCompiler
from attnhub.plugin import AnyValue, Backend, Capability, Efficiency, OneOf
from attnhub.testing.results import Environment
from tests.cli.conftest import Cli, Install, Plugin
from tests.jit.fakes import FakeCompiler, spec

HERE = Environment(gpu="cpu", versions={"python": "3"}, commit="c", date="2026-11-30T14:05:00Z")


class Planner:
    """Lists ``count`` kernels of one name for each hidden size."""

    def __init__(self, count: int) -> None:
        self._count = count

    def specs(self, problem: Any) -> list[Any]:
        factors = [problem.hidden + n + 0.5 for n in range(self._count)]
        return [spec(f, name="norm", arch=problem.device.arch) for f in factors]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, install: Install) -> ModuleType:
    """A plugin with kernels for norms, as many a problem as the test says."""
    module = ModuleType("attnhub_test_planner")
    module.planner = Planner(1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    accepts = {"dtype": OneOf("bfloat16", "float16"), "hidden": AnyValue()}
    backend = Backend(
        name="quick",
        op="norm.rmsnorm",
        capability=Capability(devices=("cuda",), accepts=accepts),
        cost=Efficiency(compute=0.9, memory=0.9),
        load="attnhub_test_planner:planner",
    )
    install(Plugin("quick_norms", backend))
    return module


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    compiler = FakeCompiler(journal=tmp_path / "journal")
    monkeypatch.setattr(compilers, "choose", lambda *_: compiler)
    return compiler


#: The models have these sizes of norms: two of Llama and Gemma, three of DeepSeek.
_FACTORS = ["4096.5", "3584.5", "7168.5", "1536.5", "512.5"]


def test_each_kernel_is_built_alone_and_anew(kernels: ModuleType, fake: FakeCompiler) -> None:
    found = jit.measure(HERE, "cpu")
    cases = [row.case for row in found.rows if row.metric == "CPU time"]
    assert cases == ["norm sm_90", *(f"norm sm_90 ({n})" for n in range(2, 6))]
    # The first once more, for what only a first compilation does; then twelve at once.
    built = fake.built()
    assert (built[0], sorted(built[1:6])) == ("4096.5", sorted(_FACTORS))
    for row in found.rows:
        assert (row.suite, row.unit) == ("jit", "s")
        if row.metric == "CPU time":
            assert row.share_of_ceiling == row.value / 4.0
    assert found.failed == {}
    assert found.skipped == {"jit first call of a process": "it needs a GPU"}


def test_twelve_at_once(kernels: ModuleType, fake: FakeCompiler) -> None:
    """Five kernels here, and the same for two older devices: twelve of those fifteen."""
    [row] = [row for row in jit.measure(HERE, "cpu").rows if row.case == "12 kernels at once"]
    assert row.share_of_ceiling == row.value / 4.0
    assert len(fake.built()) == 1 + 5 + 12


def test_too_few_kernels_are_said_so(
    kernels: ModuleType, fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "MODELS", jit.MODELS[:1])
    found = jit.measure(HERE, "cpu")
    assert found.skipped["jit 12 kernels at once"] == "the plugins here have 3 kernels"
    assert len(found.rows) == 2


def test_no_kernels_at_all(cli: Cli, install: Install, tmp_path: Path) -> None:
    install(Plugin("empty"))
    words = ("--suite", "jit", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert (result.code, result.json["rows"], result.json["failed"]) == (1, [], {})
    assert "the plugins here have 0 kernels" in result.json["skipped"]["jit 12 kernels at once"]


def test_a_kernel_that_does_not_compile_leaves_the_others(
    cli: Cli, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusing = FakeCompiler(journal=tmp_path / "journal", refuses=("3584.5",))
    monkeypatch.setattr(compilers, "choose", lambda *_: refusing)
    words = ("--suite", "jit", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert result.code == 1
    [(case, why)] = result.json["failed"].items()
    assert case == "jit norm sm_90 (2)"
    assert 'error: no "demo"' in why
    assert len(result.json["rows"]) == 8


def test_no_compiler_is_a_failure(
    cli: Cli, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def choose(*_: str) -> Compiler:
        raise NoCompiler("no compiler here", {})

    monkeypatch.setattr(compilers, "choose", choose)
    words = ("--suite", "jit", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert (result.code, result.json["failed"]) == (1, {"jit": "no compiler here"})


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Runs of a fresh process by decree: what each was given; their times fall, then rise."""
    runs: list[dict[str, str]] = []
    times = iter(["900.0 800.0", "noise\n41.5 9.0", "40.0 8.0", "43.0 7.5"])

    def run(code: str, **variables: str) -> str:
        compile(code, "first call", "exec")
        runs.append(variables)
        return next(times)

    monkeypatch.setattr(jit, "run_python", run)
    return runs


def test_first_call_is_the_best_with_a_warm_cache(processes: list[dict[str, str]]) -> None:
    every, own = jit._first_call(HERE, "cuda:0")
    assert (every.case, every.value, every.unit) == ("first call of a process", 40.0, "ms")
    assert every.share_of_ceiling == 0.8
    assert (own.case, own.value) == ("first call of a process, plugins found", 7.5)
    [folder] = {run["ATTNHUB_CACHE_DIR"] for run in processes}
    assert not Path(folder).exists()


@pytest.mark.parametrize("served", [True, False], ids=["kernel", "no kernel"])
def test_first_call_needs_a_gpu_and_a_kernel(
    served: bool,
    kernels: ModuleType,
    fake: FakeCompiler,
    processes: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jit.machine, "present", lambda device: named("h200"))
    if served:
        wanted = jit.Wanted(op="norm.rmsnorm", facts={"dtype": "bfloat16", "hidden": 64})
        monkeypatch.setattr(jit, "_MERGE", wanted)
    found = jit.measure(HERE, "cuda:0")
    assert len(processes) == (4 if served else 0)
    why = found.skipped.get("jit first call of a process", "")
    assert why == ("" if served else "no plugin here has a kernel of cascade.merge_state")


def test_the_budgets_are_those_of_the_issue() -> None:
    assert (jit.KERNEL_CPU_SECONDS, jit.MANY_SECONDS, jit.FIRST_CALL_MS) == (4.0, 4.0, 50.0)
    assert suites.names()[1] == "jit"


def test_variables_reach_a_fresh_process() -> None:
    out = process.run_python(
        "import os; print(os.environ['ATTNHUB_CACHE_DIR'])", ATTNHUB_CACHE_DIR="x"
    )
    assert out == "x\n"
