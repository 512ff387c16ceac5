"""Who may decide for the dispatcher: precedence, scopes, threads, unknown names."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import pytest

import attnhub
from attnhub.core import options
from attnhub.core.dispatch import Dispatcher
from attnhub.core.env import environment
from attnhub.core.options import Override
from attnhub.errors import (
    BackendUnsupported,
    InvalidArgument,
    NoBackend,
    PluginWarning,
    UnknownName,
)
from attnhub.plugin import isolated
from tests.core.fakes import EVERYTHING, FAST, SLOW, dispatcher, plugin, problem

NAMES = ("fast", "slow", "everything")


@pytest.fixture
def three() -> Dispatcher:
    return dispatcher(FAST, SLOW, EVERYTHING)


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    environment.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    environment.cache_clear()


def chosen(d: Dispatcher, backend: str = "") -> str:
    decision = d.decide(problem(), backend)
    assert decision.chosen is not None
    return decision.chosen.name


def use(
    backend: str, mode: str = "require", op: str = "*"
) -> contextlib.AbstractContextManager[None]:
    return options.push(Override(backend=backend, op=op, mode=mode, scope="use"))


def test_precedence_is_argument_then_use_then_config_then_environment(
    three: Dispatcher, env: pytest.MonkeyPatch
) -> None:
    env.setenv("ATTNHUB_BACKEND", "everything")
    assert chosen(three) == "everything"
    three.rules = (Override(backend="slow"),)
    three.registry.touch()
    assert chosen(three) == "slow"
    with use("fast"):
        assert chosen(three) == "fast"
        assert chosen(three, "everything") == "everything"
        with use("slow"):
            assert chosen(three) == "slow"  # the innermost wins
        assert chosen(three) == "fast"
    assert chosen(three) == "slow"


def test_the_losing_rules_are_shown(three: Dispatcher) -> None:
    with use("slow"):
        decision = three.decide(problem(), "fast")
    assert decision.overrides == (
        "argument: require fast for fake.op",
        "use: require slow (overridden)",
    )


def test_prefer_falls_through_where_it_does_not_fit(three: Dispatcher) -> None:
    with use("slow", "prefer"):
        assert chosen(three) == "slow"
    with use("fast", "prefer"):
        decision = three.decide(problem(dim=40))
    assert decision.chosen is not None
    assert decision.chosen.name == "slow"


def test_deny_excludes_with_a_reason_and_adds_up(three: Dispatcher) -> None:
    with use("fast", "deny"), use("slow", "deny"):
        decision = three.decide(problem())
    assert [c.name for c in decision.ranked] == ["everything"]
    assert {r.name: r.reasons[0].code.value for r in decision.rejected if r.reasons} == {
        "fast": "policy",
        "slow": "policy",
    }


def test_require_of_a_denied_backend_cannot_be_served(three: Dispatcher) -> None:
    with use("fast", "deny"), pytest.raises(BackendUnsupported):
        three.plan(problem(), backend="fast")


def test_denying_everything_leaves_none(three: Dispatcher) -> None:
    denied = (use("fast", "deny"), use("slow", "deny"), use("everything", "deny"))
    with denied[0], denied[1], denied[2], pytest.raises(NoBackend):
        three.plan(problem())


@pytest.mark.parametrize("scope", ["argument", "use", "config", "environment"])
def test_an_unknown_name_is_an_error_in_every_scope(
    three: Dispatcher, env: pytest.MonkeyPatch, scope: str
) -> None:
    if scope == "environment":
        env.setenv("ATTNHUB_BACKEND", "fast_")
    if scope == "config":
        three.rules = (Override(backend="fast_"),)
    inside = use("fast_") if scope == "use" else contextlib.nullcontext()
    argument = "fast_" if scope == "argument" else ""
    with inside, pytest.raises(UnknownName, match=rf"did you mean 'fast'.*\({scope}"):
        three.decide(problem(), argument)


def test_a_known_plugin_that_is_not_installed_is_named_with_what_to_do(three: Dispatcher) -> None:
    with pytest.raises(UnknownName, match=r"not installed: .*attnhub-fa3-hopper"):
        three.decide(problem(), "fa3_hopper")


def test_who_names_a_known_plugin_is_not_asked_whether_he_meant_it(three: Dispatcher) -> None:
    with pytest.raises(UnknownName, match=r"^backend 'fa2_cuda' is not installed: .* \(use\)$"):
        three.check_name(Override(backend="fa2_cuda", scope="use"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param("fa2cuda", "did you mean 'fa2_cuda'", id="all but named"),
        pytest.param("cuda", "known: everything, fast, slow ", id="far from it"),
    ],
)
def test_plugins_that_are_not_installed_are_proposed_for_near_names_only(
    three: Dispatcher, given: str, said: str
) -> None:
    with pytest.raises(UnknownName, match=said):
        three.decide(problem(), given)


def test_a_backend_that_a_rule_excludes_is_said_to_fit(three: Dispatcher) -> None:
    with use("slow"):
        decision = three.decide(problem())
    (row,) = (r for r in decision.rejected if r.name == "fast")
    assert [str(r) for r in row.reasons] == ["fits, but excluded by use: require slow"]
    assert "needs" not in str(decision).partition("everything")[2].splitlines()[0]


def test_a_rule_for_every_op_spares_ops_the_backend_does_not_serve(three: Dispatcher) -> None:
    with use("fast"):
        found = three.overrides("another.op", "")
    assert found == []


def test_a_rule_by_glob_and_by_op(three: Dispatcher, env: pytest.MonkeyPatch) -> None:
    env.setenv("ATTNHUB_BACKEND", "fake.*=slow, deny:everything")
    assert chosen(three) == "slow"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="use one of require, prefer, deny"):
        Override(backend="x", mode="requires")


def test_an_unknown_variable_is_an_error_with_the_nearest_name(env: pytest.MonkeyPatch) -> None:
    env.setenv("ATTNHUB_BACKENDS", "fast")
    with pytest.raises(UnknownName, match="did you mean 'ATTNHUB_BACKEND'"):
        environment()


def test_threads_do_not_see_each_others_overrides(three: Dispatcher) -> None:
    seen: list[str] = []
    with use("slow"):
        thread = threading.Thread(target=lambda: seen.append(chosen(three)))
        thread.start()
        thread.join()
        assert chosen(three) == "slow"
    assert seen == ["fast"]


def test_an_override_ends_with_its_block_also_by_an_exception(three: Dispatcher) -> None:
    with pytest.raises(RuntimeError), use("slow"):
        raise RuntimeError
    assert chosen(three) == "fast"


@pytest.mark.parametrize("scope", ["use", "config", "environment"])
@pytest.mark.parametrize("mode", ["require", "prefer", "deny"])
def test_a_pattern_that_no_op_has_is_an_error_in_every_scope(
    three: Dispatcher, env: pytest.MonkeyPatch, scope: str, mode: str
) -> None:
    if scope == "environment":
        env.setenv("ATTNHUB_BACKEND", f"{mode}:fake.opp=slow")
    if scope == "config":
        three.rules = (Override(backend="slow", op="fake.opp", mode=mode),)
    inside = use("slow", mode, "fake.opp") if scope == "use" else contextlib.nullcontext()
    with inside, pytest.raises(UnknownName, match=rf"op 'fake.opp'.*'fake.op'.*\({scope}"):
        three.decide(problem())


def test_the_door_refuses_a_pattern_before_the_block_begins() -> None:
    with isolated(), pytest.raises(UnknownName, match="did you mean 'attention'"):
        attnhub.use("torch_sdpa", op="attnetion")
    with isolated(), pytest.raises(UnknownName, match="attnetion"):
        attnhub.configure(Override(backend="torch_sdpa", op="attnetion"))


@pytest.mark.parametrize("op", ["fake.*", "fake.op", "f*"])
def test_a_pattern_names_its_ops_also_those_that_the_backend_does_not_serve(
    three: Dispatcher, op: str
) -> None:
    elsewhere = dataclasses.replace(FAST, name="elsewhere", op="another.op")
    with pytest.warns(PluginWarning, match="op 'another.op', which nobody registered"):
        three.registry.register(plugin(elsewhere), "elsewhere")
    with use("elsewhere", op=op), pytest.raises(BackendUnsupported, match="'elsewhere' is requir"):
        three.plan(problem())
    with use("elsewhere", "prefer", op):
        decision = three.decide(problem())
    assert decision.overrides[0].endswith("(does not serve this op)")
    assert chosen(three) == "fast"
    with use("elsewhere"):  # for whatever it serves
        assert chosen(three) == "fast"
