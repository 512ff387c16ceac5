"""The overhead suite: that it measures what it says, not how fast this machine is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnhub
from attnhub.cli.suites import overhead, stubs
from attnhub.core import discovery
from attnhub.core.decision import Decision
from attnhub.core.dispatch import Dispatcher
from attnhub.errors import AttnHubError
from attnhub.testing.results import Environment
from tests.cli.conftest import Cli

HERE = Environment(gpu="cpu", versions={"python": "3"}, commit="c", date="2026-11-30T14:05:00Z")


def test_overhead_is_a_share_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = overhead.Budget(case="thing", limit=5.0, unit="us", measure=lambda device: 2.5)
    monkeypatch.setattr(overhead, "BUDGETS", (budget,))
    (row,) = overhead.rows(HERE, "cpu")
    assert (row.suite, row.case, row.value, row.unit) == ("overhead", "thing", 2.5, "us")
    assert row.share_of_ceiling == 0.5


def test_the_budgets_are_those_of_the_design() -> None:
    limits = {b.case: f"{b.limit:g} {b.unit}" for b in overhead.BUDGETS}
    assert limits == {
        "Plan.run": "1 us",
        "BatchAttention.run, (K, V) tuple": "5 us",
        "BatchAttention.run, one cache tensor": "5 us",
        "functional op, one output": "8 us",
        "cold selection of 12": "200 us",
        "import attnhub": "50 ms",
        "import, attention, all plugins": "50 ms",
    }


def test_an_overhead_that_cannot_be_measured_is_a_failure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(overhead, "_TIMED", "raise RuntimeError('no good')")
    monkeypatch.setattr(overhead, "BUDGETS", overhead.BUDGETS[-1:])
    words = ("--suite", "overhead", "--device", "cpu", "--out", str(tmp_path), "--json")
    result = cli("bench", "run", *words)
    assert (result.code, result.json["rows"]) == (1, [])
    assert "RuntimeError: no good" in result.json["failed"]["overhead"]


@pytest.mark.parametrize(
    "case",
    [
        "Plan.run",
        "BatchAttention.run, (K, V) tuple",
        "BatchAttention.run, one cache tensor",
        "functional op, one output",
    ],
)
def test_the_stub_is_what_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def once(fn: Callable[[], object], **_: Any) -> float:
        fn()
        return 3.0

    monkeypatch.setattr(stubs._Plan, "run", lambda self, *tensors: calls.append(len(tensors)))
    monkeypatch.setattr(overhead, "host_overhead", once)
    before = discovery.default()
    (measure,) = [b.measure for b in overhead.BUDGETS if b.case == case]
    assert measure("cpu") == 3.0
    # Attention takes q, k, v, out, lse, mask, scales, params; the norm x, weight, out, eps, bias.
    assert calls == [5 if "functional" in case else 8]
    assert discovery.default() is before


@pytest.mark.parametrize(
    ("case", "form"), [("(K, V) tuple", tuple), ("one cache tensor", torch.Tensor)]
)
def test_both_forms_of_a_cache_are_measured(
    case: str, form: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(self: Any, q: torch.Tensor, cache: Any, *, out: torch.Tensor) -> None:
        assert out.shape == q.shape
        seen.append(type(cache))

    monkeypatch.setattr(attnhub.BatchAttention, "run", run)
    monkeypatch.setattr(overhead, "host_overhead", lambda fn, **_: fn() or 3.0)
    (measure,) = [b.measure for b in overhead.BUDGETS if b.case == f"BatchAttention.run, {case}"]
    assert measure("cpu") == 3.0
    assert seen == [form]


def test_selection_is_cold_and_among_twelve(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Decision] = []
    decide = Dispatcher.decide

    def watched(self: Dispatcher, problem: Any) -> Decision:
        seen.append(decide(self, problem))
        return seen[-1]

    def twice(fn: Callable[[], object], **_: Any) -> float:
        fn()
        fn()
        return 150.0

    monkeypatch.setattr(Dispatcher, "decide", watched)
    monkeypatch.setattr(overhead, "host_overhead", twice)
    assert overhead._selection("cpu") == 150.0
    assert len({id(decision) for decision in seen}) == 2  # each call decides anew
    for decision in seen:
        fitting, others = (
            [d.name for d in group if d.name.startswith("stub_")]
            for group in (decision.ranked, decision.rejected)
        )
        assert (len(fitting), len(others)) == (6, 3)  # on sm_90 with pages of 16
        asked = [r for r in decision.rejected if not r.install]
        assert len(decision.ranked) + len(asked) == 12


def test_import_time_is_the_best_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = iter(["61.0", "noise of a plugin\n42.5", "48.0"])
    environments = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        environments.append(env)
        return SimpleNamespace(returncode=0, stdout=next(outputs), stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert overhead._import("import attnhub") == 42.5
    root = str(Path(attnhub.__file__).resolve().parents[1])
    assert all(env["PYTHONPATH"].startswith(root) for env in environments)


def test_an_import_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "_TIMED", "raise RuntimeError('no good')")
    with pytest.raises(AttnHubError, match="no good"):
        overhead._import("import attnhub")
