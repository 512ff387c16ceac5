"""The schedule suite: that it measures what it says, not how fast this machine is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from attnhub.cli.suites import schedule
from attnhub.cli.suites.schedule import Case
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.results import Environment
from tests.cli.conftest import Cli

HERE = Environment(gpu="cpu", versions={"python": "3"}, commit="c", date="2026-11-30T14:05:00Z")
CASES = (
    Case(name="within", decode=3, kv_len=100, limit_us=4.0),
    Case(name="mixed", decode=3, prompts=2, kv_len=600),
    Case(name="fixed", decode=3, kv_len=600, split_len=512),
)


def test_rows_state_their_share(emulated_gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:

    def timed(plan: Callable[[], None], **_: object) -> SimpleNamespace:
        plan()
        return SimpleNamespace(median_us=3.0)

    monkeypatch.setattr(schedule, "measure", timed)
    monkeypatch.setattr(schedule, "host_overhead", lambda plan, **_: 7.5)
    monkeypatch.setattr(schedule, "CASES", CASES)
    rows = [(r.case, r.metric, r.value, r.share_of_ceiling) for r in schedule.rows(HERE, "cpu")]
    assert rows == [
        ("within", "device time", 3.0, 0.75),
        ("within", "host time", 7.5, 0.5),
        ("mixed", "device time", 3.0, None),
        ("mixed", "host time", 7.5, 0.5),
        ("fixed", "device time", 3.0, None),
        ("fixed", "host time", 7.5, 0.5),
    ]
    grids = [launch.grid for _, launch in emulated_gpu.launches]
    assert grids == [(2,)] * 2 + [(3,)] * 2 + [(2,)] * 2  # a CTA for each section, and one more


def test_the_budgets_are_those_of_the_issue() -> None:
    limits = {c.decode: c.limit_us for c in schedule.CASES if c.limit_us is not None}
    assert limits == {1: 4.0, 256: 4.0, 4096: 6.0}
    assert schedule.HOST_US == 15.0


def test_needs_a_gpu(cli: Cli) -> None:
    result = cli("bench", "run", "--suite", "schedule", "--device", "cpu", "--json")
    assert result.code == 1
    assert result.json["skipped"] == {"schedule": "it needs a GPU"}
