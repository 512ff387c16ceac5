"""The suite passes sound backends; `test_conformance_catches` shows that it passes no others."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import attnhub
from attnhub.attn.problem import FEATURES as ALL_FEATURES
from attnhub.core.dispatch import Dispatcher
from attnhub.core.registry import Registry
from attnhub.errors import UnknownName
from attnhub.plugin import Capability, OneOf, Op, Problem, registry
from attnhub.testing import conformance
from attnhub.testing.attention_variants import FEATURES
from attnhub.testing.cases import adapter
from attnhub.testing.conformance import Case, Nonconformance, cases, suite
from tests.testing.liars import Liar, Register, failures

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party_plugin"

OPS = [op for op in registry().ops if any(b.name == "reference" for b in registry().backends(op))]

test_reference = suite("reference", pairs=4)
test_torch_sdpa = suite("torch_sdpa", pairs=40)


# -- the suite itself --------------------------------------------------------------------------


def test_every_feature_has_a_variant() -> None:
    assert set(FEATURES) == set(ALL_FEATURES)


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_calls(op: str) -> None:
    assert adapter(registry().op(op)).callable


@pytest.mark.parametrize("op", OPS)
def test_calls_reach_the_problem_they_are_for(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Problem] = []
    plan = Dispatcher.plan

    def recording(self: Dispatcher, problem: Problem, *args: Any, **options: Any) -> Any:
        planned.append(problem)
        return plan(self, problem, *args, **options)

    monkeypatch.setattr(Dispatcher, "plan", recording)
    for case in (c for c in cases("reference", op=op, pairs=0) if "-serves-" in c.id):
        corner = case.check.args[1]
        registry().touch()  # forget plans, so that each is made anew
        planned.clear()
        first = next(iter(case.subject.adapter.calls(corner.problem, case.subject.torch_device)))
        with attnhub.use("reference", op=op):
            first.run()
        assert str(corner.problem) in map(str, planned), case.id


@pytest.mark.parametrize("op", OPS)
def test_a_sheet_of_one_problem_is_held_to_its_word(register: Register, op: str) -> None:
    base = next(iter(cases("reference", op=op, pairs=0))).check.args[1].problem
    fields = [f.name for f in dataclasses.fields(base) if "domain" in f.metadata]
    sheet = Capability(accepts={name: OneOf(getattr(base, name)) for name in fields})
    register(Liar(op), sheet, op=op)
    assert failures(op=op) == {}
    refused = [case.id for case in cases("liar", op=op) if "refuses" in case.id]
    assert len(refused) >= len(fields)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="reference"):
        suite("referense")
    with pytest.raises(UnknownName, match=r"backend of 'norm\.rmsnorm'"):
        suite("torch_sdpa", op="norm.rmsnorm")
    with pytest.raises(UnknownName, match=r"norm\.rmsnorm"):
        suite("reference", op="norm.rmsnorn")


def test_one_line_is_a_test_file(tmp_path: Path) -> None:
    line = "from attnhub.testing import suite; test_it = suite('reference', op='norm.layernorm')"
    (tmp_path / "test_mine.py").write_text(line)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout
    assert "test_it[norm.layernorm-cpu-serves-bias=True] PASSED" in done.stdout


# -- other ops ---------------------------------------------------------------------------------


@pytest.fixture
def toy_op(register: Register, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An op of a third party: rmsnorm's problem, with small workloads of its own."""
    from attnhub.norm import workloads

    module = types.ModuleType("attnhub_test_toy")
    module.workloads = workloads.rmsnorm
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def toy(compare: str = "close") -> Op:
    return Op(
        name="norm.rmsnorm",
        summary="a toy",
        problem="attnhub.norm.problem:RMSNormProblem",
        workloads="attnhub_test_toy:workloads",
        compare=compare,
    )


def toy_cases(monkeypatch: pytest.MonkeyPatch, register: Register, op: Op) -> list[Case]:
    from attnhub.testing import cases as adapters

    monkeypatch.setattr(adapters, "_HERE", {})
    monkeypatch.setattr(Registry, "op", lambda self, name: op)
    register(None, op="norm.rmsnorm", load="attnhub.testing.faults:sound")
    return list(cases("liar", op="norm.rmsnorm", pairs=0))


def test_an_op_without_adapter_is_tested_by_its_workloads(
    toy_op: types.ModuleType, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = toy_cases(monkeypatch, register, toy())
    assert [case.id for case in found] == [
        "norm.rmsnorm-cpu-serves-7x64-bfloat16",
        "norm.rmsnorm-cpu-serves-5x111-bfloat16",
    ]
    assert [case.check() for case in found] == ["", ""]


def test_an_op_may_bring_its_calls(
    toy_op: types.ModuleType, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(problem: Any, device: torch.device, generator: torch.Generator) -> Any:
        x = torch.randn(3, problem.hidden, generator=generator)
        built.append(problem.hidden)
        return lambda: (attnhub.norm.rmsnorm(x, torch.ones(problem.hidden)), None)

    built: list[int] = []
    toy_op.calls = {"norm.rmsnorm": build}
    found = toy_cases(monkeypatch, register, toy())
    served = next(case for case in found if case.id.endswith("serves-hidden=111"))
    assert served.check() == ""
    assert set(built) == {111}
    assert len(built) >= 2  # anew for the backend and for the reference


@pytest.mark.parametrize(
    ("compare", "fails"), [("equal", True), ("distribution", False)], ids=["equal", "distribution"]
)
def test_ops_say_how_results_compare(
    compare: str,
    fails: bool,
    toy_op: types.ModuleType,
    register: Register,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attnhub.testing import faults

    monkeypatch.setattr(faults, "sound", faults.wrong)
    (case, *_) = toy_cases(monkeypatch, register, toy(compare))
    if fails:
        with pytest.raises(Nonconformance, match="elements differ"):
            case.check()
    else:
        assert case.check() == ""


# -- the example -------------------------------------------------------------------------------


def _example() -> Sequence[Case]:
    found = list(cases("flex", op="attention", pairs=0))
    slow = ("serves-head", "serves-num", "dtype")  # each shape is traced anew; its own tests do
    return [case for case in found if not any(word in case.id for word in slow)]


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9), reason="the example needs torch 2.9"
)
def test_example_conforms(isolated_registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from attnhub_flex import manifest

    isolated_registry.register(manifest, "flex")
    chosen = _example()
    assert {case.check() for case in chosen} == {""}
    ids = {case.id.removeprefix("attention-cpu-") for case in chosen}
    assert {"serves-base", "serves-features=alibi", "refuses-kv=paged"} <= ids


def test_example_manifest_is_light() -> None:
    code = "import sys, attnhub_flex.manifest; sys.exit('torch' in sys.modules)"
    path = f"{ROOT}:{EXAMPLE}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": path}, check=False)
    assert done.returncode == 0


def test_gpu_cases_carry_the_gpu_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = dataclasses.replace(attnhub.plugin.describe("h100"), simulated=False)
    case = next(iter(cases("reference", op="norm.rmsnorm")))
    moved = dataclasses.replace(case, subject=dataclasses.replace(case.subject, device=gpu))
    monkeypatch.setattr(conformance, "cases", lambda *_, **__: [case, moved])
    (parameters,) = suite("reference").pytestmark
    marks = [[mark.name for mark in each.marks] for each in parameters.args[1]]
    assert marks == [[], ["attnhub_gpu"]]
