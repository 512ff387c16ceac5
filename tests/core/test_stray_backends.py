"""A backend for an op that there is not is told of: no call would ever reach it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from attnhub.core import discovery
from attnhub.core.registry import Registry
from attnhub.errors import PluginWarning
from attnhub.plugin import Backend
from tests.core.fakes import EVERYTHING, backend, plugin

STRAY = "backend 'typo' is for op 'fake.opp', which nobody registered; did you mean 'fake.op'"


def typo() -> Backend:
    return backend("typo", op="fake.opp")


class _Dist:
    version = "1.0"


class _Entry:
    """An installed plugin as discovery sees it."""

    dist = _Dist()

    def __init__(self, name: str, offered: Any) -> None:
        self.name, self.value, self._offered = name, f"tests:{name}", offered

    def load(self) -> Any:
        return self._offered


def discovered(monkeypatch: pytest.MonkeyPatch, **plugins: Any) -> tuple[Registry, list[str]]:
    """A registry of these plugins, loaded in the order of their names, and what was reported."""
    entries = [_Entry(name, offered) for name, offered in plugins.items()]
    monkeypatch.setattr(discovery, "entry_points", lambda: entries)
    registry = Registry()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        discovery.discover(registry)
    return registry, [str(w.message) for w in caught if w.category is PluginWarning]


def test_registered_in_this_process_it_is_told_of_at_once() -> None:
    registry = Registry()
    registry.register(plugin(EVERYTHING, ops=True), "theirs")
    with pytest.warns(PluginWarning, match=STRAY):
        registry.register(plugin(typo()), "mine")
    assert registry.plugins["mine"].error == STRAY
    assert registry.plugins["theirs"].error == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.register(plugin(), "another")  # it is not told again


def test_an_op_that_comes_later_clears_it() -> None:
    registry = Registry()
    with pytest.warns(PluginWarning, match="op 'fake.op', which nobody registered"):
        registry.register(plugin(EVERYTHING), "mine")
    registry.register(plugin(ops=True), "theirs")
    assert registry.plugins["mine"].error == ""


@pytest.mark.parametrize(("backends", "ops"), [("a", "b"), ("b", "a")])
def test_the_order_of_installed_plugins_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, backends: str, ops: str
) -> None:
    both = {backends: plugin(EVERYTHING), ops: plugin(ops=True)}
    registry, reports = discovered(monkeypatch, **both)
    assert reports == []
    assert {name: info.error for name, info in registry.plugins.items()} == {
        "attnhub": "", "a": "", "b": "",
    }  # fmt: skip


def test_an_installed_one_is_told_of_once_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, reports = discovered(monkeypatch, a=plugin(typo(), EVERYTHING), b=plugin(ops=True))
    assert reports == [f"plugin 'a': {STRAY}"]
    assert registry.plugins["a"].error == STRAY
    assert [b.name for b in registry.backends("fake.op")] == ["everything"]
