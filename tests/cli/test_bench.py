from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import attnhub
from attnhub.cli import suites
from attnhub.cli.suites import workloads
from attnhub.cli.suites.ceiling import Ceiling
from attnhub.core import discovery
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.plugin import Backend, Capability, Efficiency, Op, hookimpl
from attnhub.testing.timing import PeerTimings, Timing
from tests.cli.conftest import Cli, Install, Plugin


@pytest.fixture
def ceiling(monkeypatch: pytest.MonkeyPatch) -> Ceiling:
    """10 GB/s and 2 TFLOP/s."""
    monkeypatch.setattr(Ceiling, "gb_s", 10.0)
    monkeypatch.setattr(Ceiling, "tflop_s", 2.0)
    return Ceiling("cpu")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(Work(flops=0, bytes=2e6), ("bandwidth", "GB/s", 200.0), id="moves only"),
        pytest.param(Work(flops=1e9, bytes=0), ("throughput", "TFLOP/s", 500.0), id="counts only"),
        pytest.param(Work(flops=1e9, bytes=1e6), ("throughput", "TFLOP/s", 500.0), id="flops bind"),
        pytest.param(Work(flops=1e8, bytes=1e6), ("bandwidth", "GB/s", 100.0), id="bytes bind"),
    ],
)
def test_the_binding_ceiling_judges(
    ceiling: Ceiling, work: Work, expected: tuple[str, str, float]
) -> None:
    bound = ceiling.bound(work)
    assert bound is not None
    assert (bound.metric, bound.unit) == expected[:2]
    assert bound.best_us == pytest.approx(expected[2])
    # At the least time the rate is the ceiling itself.
    assert bound.rate(bound.best_us) == pytest.approx(10.0 if bound.unit == "GB/s" else 2.0)


def test_no_stated_work_has_no_ceiling(ceiling: Ceiling) -> None:
    assert ceiling.bound(Work(flops=0, bytes=0)) is None


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnhub.cli.suites.ceiling.copy_ceiling", lambda device: 12.5)
    monkeypatch.setattr("attnhub.cli.suites.ceiling.matmul_ceiling", lambda device: 2.5)
    assert Ceiling("cpu").gb_s == 12.5
    assert Ceiling("cpu").tflop_s == 2.5


class Doubling:
    """An op that a test owns: two backends, two workloads."""

    name = "testing.double"
    dist = SimpleNamespace(version="1")

    def __init__(self, *workload_list: Workload) -> None:
        module = ModuleType("attnhub_test_workloads")
        module.double = workload_list  # type: ignore[attr-defined]
        module.one = SimpleNamespace(plan=lambda p: SimpleNamespace(run=_double))  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module

    def load(self) -> Doubling:
        return self

    @hookimpl
    def attnhub_ops(self) -> list[Op]:
        problem = "attnhub.norm.problem:RMSNormProblem"
        target = "attnhub_test_workloads:double"
        return [Op(name=self.name, summary="", problem=problem, workloads=target)]

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        return [
            Backend(
                name=name,
                op=self.name,
                capability=Capability(complete=True, devices=devices),
                cost=Efficiency(compute=share, memory=share),
                load="attnhub_test_workloads:one",
            )
            for name, share, devices in (
                ("fast", 0.9, ("cpu",)),
                ("slow", 0.1, ("cpu",)),
                ("elsewhere", 1.0, ("cuda",)),
            )
        ]


def _double(x: torch.Tensor) -> None:
    x.mul_(2)


def _workload(name: str, make: Callable[..., Any], **options: Any) -> Workload:
    return Workload(name=name, make=make, work=Work(flops=0, bytes=2e6), **options)


def _dispatched(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
    """A call that goes through the hub each time, as a functional op does."""
    from attnhub.core import dispatch
    from attnhub.core.device import CPU
    from attnhub.core.problem import Extent
    from attnhub.norm.problem import RMSNormProblem

    x = torch.ones(4, device=device)

    class Problem(RMSNormProblem):
        op = "testing.double"

    problem = Problem(device=CPU, extent=Extent(tokens=1), dtype="float32", hidden=4)
    return lambda: dispatch.default().plan(problem)[0].run(x)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Timing by decree: microseconds by name; the functions are called once."""
    us = {"attnhub": 400.0}

    def compare(calls: dict[str, Callable[[], Any]], **_: Any) -> PeerTimings:
        for call in calls.values():
            call()
        return PeerTimings(
            timings={
                name: Timing(median_us=us[name], p10_us=0, p90_us=0, repeats=1, method="fake")
                for name in calls
            }
        )

    monkeypatch.setattr(workloads, "compare_peers", compare)
    return us


def test_a_workload_gives_its_time_and_its_share(
    cli: Cli, install: Install, ceiling: Ceiling, timed: dict[str, float], tmp_path: Path
) -> None:
    install(Doubling(_workload("four", _dispatched)))
    timed["slow"] = 1000.0
    result = cli(
        *("bench", "run", "--suite", "testing.*", "--device", "cpu", "--json"),
        *("--against", "slow", "--against", "fast", "--against", "elsewhere"),
        *("--out", str(tmp_path)),
    )
    assert result.code == 0
    time, bandwidth = result.json["rows"]
    assert time["case"] == bandwidth["case"] == "four (fast)"  # the backend that ran
    assert (time["metric"], time["value"], time["peers"]) == ("time", 400.0, {"slow": 1000.0})
    assert bandwidth["value"] == pytest.approx(5.0)
    assert bandwidth["peers"] == {"slow": pytest.approx(2.0)}
    assert bandwidth["share_of_ceiling"] == pytest.approx(0.5)  # of 10 GB/s
    (file,) = result.json["files"]
    assert json.loads(Path(file).read_text())["rows"] == result.json["rows"]
    assert "'elsewhere' is required" in result.err


def _unmeasured(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
    pytest.fail("a run that cannot end well was begun")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["--out", "f.txt"], "f.txt: cannot be written to as a folder: File exists", id="out"
        ),
        pytest.param(
            ["--against", "fsat"],
            "unknown backend of testing.double 'fsat'; did you mean 'fast'?",
            id="no such backend",
        ),
        pytest.param(
            ["--against", "slow", "--against", "torch_sdpa"],
            "unknown backend of testing.double 'torch_sdpa'; known: ",
            id="a backend of another op",
        ),
        pytest.param(["--tag", "smal"], "unknown workload tag 'smal'; did you mean", id="tag"),
        pytest.param(["--tag", "any"], "unknown workload tag 'any'; known: ", id="no real tag"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    cli: Cli,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.txt").touch()
    install(Doubling(_workload("four", _unmeasured)))
    result = cli("bench", "run", "--suite", "testing.double", "--device", "cpu", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1


def test_rows_that_cannot_be_written_are_shown_all_the_same(
    cli: Cli, install: Install, ceiling: Ceiling, timed: dict[str, float], tmp_path: Path
) -> None:
    install(Doubling(_workload("four", _dispatched)))
    words = ("bench", "run", "--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path))
    assert cli(*words).code == 0
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    result = cli(*words)
    assert result.code == 1
    assert "400 us" in result.out
    assert f"FAILED results of testing.double: {file}: not a readable JSON file" in result.err
    result = cli(*words, "--json")
    assert (result.code, [row["value"] for row in result.json["rows"]]) == (1, [400.0, 5.0])
    assert list(result.json["failed"]) == ["results of testing.double"]
    assert file.read_text() == "{"


def test_a_failure_ends_its_workload_only(
    cli: Cli, install: Install, ceiling: Ceiling, timed: dict[str, float], tmp_path: Path
) -> None:
    def broken(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        raise RuntimeError("out of memory")

    install(Doubling(_workload("bad", broken), _workload("good", _dispatched)))
    words = ("--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert result.code == 1
    assert result.json["failed"] == {"testing.double bad": "RuntimeError: out of memory"}
    assert {row["case"] for row in result.json["rows"]} == {"good (fast)"}


def test_what_nothing_serves_is_skipped(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(Doubling(_workload("four", _dispatched)))
    monkeypatch.setenv("ATTNHUB_BACKEND", "testing.double=elsewhere")
    words = ("--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert (result.code, result.json["rows"], result.json["failed"]) == (1, [], {})
    assert result.err.endswith("nothing was measured\n")
    assert "'elsewhere' is required" in result.json["skipped"]["testing.double four"]


def test_a_suite_without_workloads_is_skipped(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(Doubling(_workload("four", _dispatched, tags=frozenset({"h200"}))))
    words = ("--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path), "--json")
    skipped = cli("bench", "run", *words).json["skipped"]
    assert skipped == {"testing.double": "no workload is tagged 'small'"}
    monkeypatch.delitem(sys.modules, "attnhub_test_workloads")
    skipped = cli("bench", "run", *words).json["skipped"]
    reason = "no workloads: there is no module attnhub_test_workloads"
    assert skipped == {"testing.double": reason}
    suites_found = {s["suite"]: s for s in cli("bench", "list", "--json").json}
    assert suites_found["testing.double"]["missing"] == reason


def test_a_suite_whose_list_is_empty_is_skipped(cli: Cli, install: Install, tmp_path: Path) -> None:
    install(Doubling())
    words = ("--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path))
    result = cli("bench", "run", *words)
    reason = "no workloads: attnhub_test_workloads:double is empty"
    assert (result.code, result.out) == (1, "")
    assert f"skipped testing.double: {reason}\n" in result.err
    suites_found = {s["suite"]: s for s in cli("bench", "list", "--json").json}
    assert suites_found["testing.double"]["missing"] == reason


def test_workloads_that_do_not_load_are_a_failure(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(Doubling(_workload("four", _dispatched)))
    monkeypatch.delattr("attnhub_test_workloads.double")
    words = ("--suite", "testing.double", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert result.code == 1
    failed = result.json["failed"]["testing.double"]
    assert failed.startswith("plugin 'testing.double': cannot load")
    assert "no attribute 'double'" in failed


def test_a_real_run_of_a_real_suite(cli: Cli, ceiling: Ceiling, tmp_path: Path) -> None:
    words = ("--suite", "norm.rmsnorm", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert (result.code, result.json["failed"]) == (0, {})
    rows = {(row["case"], row["metric"]): row for row in result.json["rows"]}
    time = rows["7x64-bfloat16 (reference)", "time"]["value"]
    bandwidth = rows["7x64-bfloat16 (reference)", "bandwidth"]
    assert bandwidth["value"] == pytest.approx(2 * 7 * 64 * 2 / time / 1e3)
    assert bandwidth["share_of_ceiling"] == pytest.approx(bandwidth["value"] / 10.0)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        pytest.param("h100", "device 'h100' is known by name only", id="a name"),
        pytest.param("cuda:99", "device 'cuda:99': this machine has", id="absent"),
        pytest.param("tpu", "unknown device 'tpu'", id="unknown"),
    ],
)
def test_measuring_needs_a_device_of_this_machine(cli: Cli, device: str, message: str) -> None:
    result = cli("bench", "run", "--device", device)
    assert result.code == 2
    assert result.err.startswith(f"error: {message}")


def test_globs_choose_suites_in_order() -> None:
    names = suites.names()
    assert names[0] == "overhead"
    assert suites.matching(["norm.*", "overhead"]) == [
        "overhead",
        *(n for n in names if n.startswith("norm.")),
    ]


def test_list_counts_workloads_by_tag(cli: Cli, install: Install) -> None:
    h200 = _workload("large", _dispatched, tags=frozenset({"h200"}))
    install(Doubling(_workload("four", _dispatched), h200, h200))
    found = {s["suite"]: s for s in cli("bench", "list", "--json").json}
    assert found["testing.double"]["workloads"] == {"small": 1, "h200": 2}
    assert found["overhead"]["workloads"] == {"any": 7}
    lines = [line.split() for line in cli("bench", "list").out.splitlines()]
    assert ["testing.double", "1", "small,", "2", "h200"] in lines


def test_a_watched_registry_sees_every_choice_and_leaves_no_trace(install: Install) -> None:
    install(Plugin("empty"))
    before = discovery.default()
    with workloads._watched() as decisions:
        attnhub.norm.rmsnorm(torch.ones(2, 8), torch.ones(8))
        attnhub.norm.rmsnorm(torch.ones(2, 8), torch.ones(8))
    assert [(d.op, d.chosen.name) for d in decisions if d.chosen] == [("norm.rmsnorm", "reference")]
    assert discovery.default() is before


@pytest.mark.parametrize(("found", "kept"), [("unknown", "abc123"), ("fff000", "abc123")])
def test_the_commit_of_a_tree_without_history_can_be_said(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str, kept: str
) -> None:
    monkeypatch.setattr("attnhub.testing.results._commit", lambda file: found)
    result = cli(
        "bench", "run", "--suite", "norm.rmsnorm", "--device", "cpu", "--out", str(tmp_path),
        "--commit", "abc123", "--json",
    )  # fmt: skip
    assert {row["commit"] for row in result.json["rows"]} == {kept}
