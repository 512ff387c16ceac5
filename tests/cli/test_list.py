from __future__ import annotations

import pytest

import attnhub
from attnhub.plugin import AnyValue, Backend, Capability, Efficiency, OneOf, Range
from tests.cli.conftest import Cli, Install, Plugin

_COST = Efficiency(compute=0.5, memory=0.5)


def _backend(*sheets: Capability) -> Backend:
    return Backend(name="quick", op="norm.rmsnorm", capability=sheets, cost=_COST, load="none:none")


def _sheet(**options: object) -> Capability:
    accepts = {"dtype": OneOf("float16"), "hidden": AnyValue()}
    return Capability(accepts=accepts, **options)  # type: ignore[arg-type]


def _fail() -> None:
    raise ImportError("libquick.so is missing")


def test_json_has_every_backend_with_its_plugin(cli: Cli, install: Install) -> None:
    install(Plugin("quick_norms", _backend(_sheet(devices=("cuda",), sm=Range(80, 90)))))
    result = cli("list", "--op", "norm.rms*", "--json")
    assert result.code == 0
    (op,) = result.json["ops"]
    assert (op["op"], op["compare"]) == ("norm.rmsnorm", "close")
    assert {"backend": "quick", "plugin": "quick_norms", "runs_on": ["cuda sm 80 to 90"]} in op[
        "backends"
    ]
    assert {"backend": "reference", "plugin": "attnhub", "runs_on": ["cpu", "cuda"]} in op[
        "backends"
    ]
    plugins = {p["plugin"]: p for p in result.json["plugins"]}
    assert plugins["attnhub"]["version"] == attnhub.__version__
    assert plugins["quick_norms"]["version"] == "1.2.3"
    assert plugins["quick_norms"]["backends"] == ["quick"]
    assert plugins["quick_norms"]["error"] == ""


@pytest.mark.parametrize(
    ("sheets", "expected"),
    [
        pytest.param([_sheet()], ["cpu", "cuda"], id="any"),
        pytest.param([_sheet(devices=("cuda",), sm=OneOf(90))], ["cuda sm 90"], id="one arch"),
        pytest.param(
            [_sheet(devices=("cuda",), sm=Range(80)), _sheet(devices=("cpu",), sm=Range(80))],
            ["cuda sm >= 80", "cpu"],
            id="alternatives; an architecture says nothing of a CPU",
        ),
        pytest.param([_sheet(devices=("cpu",)), _sheet(devices=("cpu",))], ["cpu"], id="once"),
    ],
)
def test_devices_come_from_the_capability(
    cli: Cli, install: Install, sheets: list[Capability], expected: list[str]
) -> None:
    install(Plugin("quick_norms", _backend(*sheets)))
    (op,) = cli("list", "--op", "norm.rmsnorm", "--json").json["ops"]
    assert [b["runs_on"] for b in op["backends"] if b["backend"] == "quick"] == [expected]


def test_a_broken_plugin_is_shown_and_takes_none_down(cli: Cli, install: Install) -> None:
    install(Plugin("bad", load=_fail), Plugin("good", _backend(_sheet())))
    result = cli("list", "--json")
    assert (result.code, result.err) == (0, "")
    errors = {p["plugin"]: p["error"] for p in result.json["plugins"]}
    assert errors["bad"] == "ImportError: libquick.so is missing"
    assert errors["good"] == ""
    assert "broken: ImportError: libquick.so is missing" in cli("list").out


def test_a_plugin_that_prints_does_not_spoil_the_document(cli: Cli, install: Install) -> None:
    install(Plugin("loud", load=lambda: print("hello from loud")))  # noqa: T201
    result = cli("list", "--json")
    assert "loud" in {p["plugin"] for p in result.json["plugins"]}
    assert result.err == "hello from loud\n"


def test_known_plugins_are_pointed_at_until_installed(cli: Cli, install: Install) -> None:
    def missing() -> dict[str, list[str]]:
        found = cli("list", "--op", "norm.*", "--json").json["not_installed"]
        return {known["backend"]: known["ops"] for known in found}

    assert missing() == {"triton_misc": ["norm.*"]}
    assert "attnhub-triton-misc" in cli("list", "--op", "norm.*").out


def test_an_installed_known_plugin_is_not_pointed_at(cli: Cli, install: Install) -> None:
    install(Plugin("misc", Backend(
        name="triton_misc", op="norm.rmsnorm", capability=_sheet(), cost=_COST, load="none:none"
    )))  # fmt: skip
    assert cli("list", "--op", "norm.*", "--json").json["not_installed"] == []


def test_text_has_a_line_for_each_backend(cli: Cli, install: Install) -> None:
    install(Plugin("quick_norms", _backend(_sheet(devices=("cuda",), sm=Range(80)))))
    lines = [line.split() for line in cli("list", "--op", "norm.rmsnorm").out.splitlines()]
    assert ["op", "backend", "plugin", "runs", "on"] in lines
    assert ["quick", "quick_norms", "cuda", "sm", ">=", "80"] in lines
    assert ["attnhub", attnhub.__version__, "-", "ready"] in lines
