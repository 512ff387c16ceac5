"""What grows with use is bounded, what is asked once is asked once, and threads do not race."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import attnhub
from attnhub.core import discovery, dispatch
from attnhub.core.device import CPU
from attnhub.core.recent import Once, Recent
from attnhub.plugin import isolated
from tests.core.fakes import EVERYTHING, FAST, backend, dispatcher, fixed, plugin, problem

asked: list[Any] = []


def probe(device: Any) -> list[Any]:
    asked.append(device)
    return []


def test_the_oldest_goes_first() -> None:
    recent: Recent[int] = Recent(2)
    for i in range(3):
        assert recent.put(i, i) == i
    assert dict(recent) == {1: 1, 2: 2}


def test_another_world_drops_what_was_decided_for_the_last() -> None:
    recent: Recent[int] = Recent(10)
    recent.put("a", 1, world=1)
    recent.put("b", 2, world=2)
    assert dict(recent) == {"b": 2}


def test_once_says_once_and_forgets_at_last() -> None:
    once = Once(2)
    assert [once.first(x) for x in "aab"] == [True, False, True]
    once.first("c")
    assert once.first("a")


def test_decisions_of_registries_that_are_gone_are_dropped() -> None:
    d = dispatcher(EVERYTHING)
    for _ in range(50):
        d.registry.touch()
        d.plan(problem("cpu"))
    assert len(d._choices) == 1
    assert len(d._notices._told) == 1


def test_plans_of_functional_ops_are_dropped_with_their_registry() -> None:
    with isolated() as registry:
        for _ in range(20):
            registry.touch()
            attnhub.norm.rmsnorm(torch.ones(1, 8), torch.ones(8))
        assert len(attnhub.norm.api._rmsnorm._plans) == 1


def test_each_decision_is_told_once_whatever_changes_about_the_registry() -> None:
    told: list[Any] = []
    d = dispatcher(EVERYTHING)
    d.registry.observe = told.append  # type: ignore[method-assign]
    for tokens in (1, 1, 64, 1):
        d.registry.touch()
        d.plan(problem("cpu", tokens=tokens))
    assert len(told) == 2


def test_a_probe_is_asked_once_a_device() -> None:
    asked.clear()
    both = [backend(n, cost=fixed(1.0), probe=f"{__name__}:probe") for n in ("one", "two")]
    d = dispatcher(*both)
    for tokens in (1, 64, 4096):
        d.registry.touch()
        d.decide(problem("cpu", tokens=tokens))
    assert asked == [CPU]


def test_a_plugin_that_leaves_between_decision_and_plan_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = dispatcher(EVERYTHING)
    d.registry.register(plugin(FAST), "theirs")
    select = d._select

    def select_then_leave(*args: Any) -> Any:
        choice = select(*args)
        if "theirs" in d.registry.plugins:
            d.registry.unregister("theirs")
        return choice

    monkeypatch.setattr(d, "_select", select_then_leave)
    plan, decision = d.plan(problem("h100"))
    assert plan.run() == "fast"
    assert decision.chosen is not None
    assert decision.chosen.name == "fast"
    assert d.plan(problem("h100"))[0].run() == "everything"


def test_threads_share_one_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    gate = threading.Barrier(8)

    class Slow(dispatch.Dispatcher):
        def __init__(self, registry: Any) -> None:
            threading.Event().wait(0.01)
            super().__init__(registry)
            made.append(self)

    with isolated():
        discovery.default()
        monkeypatch.setattr(dispatch, "_default", None)
        monkeypatch.setattr(dispatch, "Dispatcher", Slow)
        found: list[Any] = []

        def ask() -> None:
            gate.wait()
            found.append(dispatch.default())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(made) == 1
    assert {id(x) for x in found} == {id(made[0])}


def test_registering_while_others_decide_raises_nothing() -> None:
    d = dispatcher(EVERYTHING)
    stop, errors = threading.Event(), []

    def decide() -> None:
        try:
            while not stop.is_set():
                d.plan(problem("h100"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails
            errors.append(error)

    threads = [threading.Thread(target=decide) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(100):
        d.registry.register(plugin(FAST), "theirs")
        d.registry.unregister("theirs")
    stop.set()
    for t in threads:
        t.join()
    assert errors == []
