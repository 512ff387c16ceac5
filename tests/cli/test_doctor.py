from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import attnhub
from attnhub.cli import diagnosis, shadowing
from attnhub.plugin import AnyValue, Backend, Capability, Constraint, Efficiency, OneOf, Range
from tests.cli.conftest import Cli, Install, Plugin


def _backend(load: str, *, accepts: dict[str, Constraint], **where: Any) -> Backend:
    return Backend(
        name="quick",
        op="norm.rmsnorm",
        capability=Capability(accepts=accepts, **where),
        cost=Efficiency(compute=0.5, memory=0.5),
        load=load,
    )


_VALID: dict[str, Constraint] = {"dtype": OneOf("float16"), "hidden": AnyValue()}
_LOADS = "attnhub.backends.reference.norm:rmsnorm"


@pytest.fixture(autouse=True)
def no_shadows_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has installed is not what is tested here."""
    monkeypatch.setattr(diagnosis, "shadowed", lambda group: [])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def _problems(cli: Cli) -> dict[str, str]:
    result = cli("doctor", "--json")
    found = {p["what"]: p["why"] for p in result.json["problems"]}
    assert result.code == (1 if found else 0)
    return found


def test_a_sound_installation(cli: Cli, install: Install) -> None:
    install(Plugin("quick_norms", _backend(_LOADS, accepts=_VALID)))
    result = cli("doctor", "--json")
    assert (result.code, result.json["problems"]) == (0, [])
    assert result.json["versions"]["attnhub"] == attnhub.__version__
    assert result.json["versions"]["python"] == sys.version.split()[0]
    assert [d["device"] for d in result.json["devices"]] == ["cpu"]
    assert [(p["plugin"], p["version"]) for p in result.json["plugins"]] == [
        ("attnhub", attnhub.__version__),
        ("quick_norms", "1.2.3"),
    ]
    assert cli("doctor").out.endswith("\nnothing is broken\n")


def test_a_broken_plugin(cli: Cli, install: Install) -> None:
    def fail() -> None:
        raise ImportError("libquick.so is missing")

    install(Plugin("quick_norms", load=fail))
    assert _problems(cli) == {"plugin quick_norms": "ImportError: libquick.so is missing"}
    text = cli("doctor").out
    assert "plugin quick_norms  ImportError: libquick.so is missing" in text


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        pytest.param(
            _backend("no.such:thing", accepts=_VALID), "cannot load 'no.such:thing'", id="load"
        ),
        pytest.param(
            _backend(_LOADS, accepts={**_VALID, "widht": AnyValue()}),
            "no field 'widht' in RMSNormProblem",
            id="sheet",
        ),
    ],
)
def test_a_broken_backend(cli: Cli, install: Install, backend: Backend, message: str) -> None:
    install(Plugin("quick_norms", backend))
    (what, why) = _problems(cli).popitem()
    assert what == "backend quick of norm.rmsnorm"
    assert message in why


def test_a_backend_for_other_devices_need_not_load_here(cli: Cli, install: Install) -> None:
    install(Plugin("quick_norms", _backend("no.such:thing", accepts=_VALID, devices=("cuda",))))
    assert _problems(cli) == {}


def test_a_backend_for_other_architectures_need_not_load_here() -> None:
    backend = _backend(_LOADS, accepts=_VALID, devices=("cuda",), sm=Range(90))
    named = diagnosis.devices.named
    assert [diagnosis._is_for(backend, named(d)) for d in ("a100", "h100", "cpu")] == [
        False,
        True,
        False,
    ]


def test_unknown_variables_are_all_named_and_hide_nothing(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Plugin("quick_norms", _backend(_LOADS, accepts=_VALID)))
    monkeypatch.setenv("ATTNHUB_BACKENDS", "reference")
    monkeypatch.setenv("ATTNHUB_DEBUG", "1")
    result = cli("doctor", "--json")
    assert result.code == 1
    assert {p["what"]: p["why"].partition(";")[0] for p in result.json["problems"]} == {
        "ATTNHUB_BACKENDS": "unknown environment variable 'ATTNHUB_BACKENDS'",
        "ATTNHUB_DEBUG": "unknown environment variable 'ATTNHUB_DEBUG'",
    }
    unknown = {v["name"]: v["value"] for v in result.json["environment"] if not v["known"]}
    assert unknown == {"ATTNHUB_BACKENDS": "reference", "ATTNHUB_DEBUG": "1"}
    assert "quick_norms" in {p["plugin"] for p in result.json["plugins"]}


@pytest.mark.parametrize(
    ("name", "value", "what", "why"),
    [
        pytest.param(
            "ATTNHUB_BACKEND",
            "norm.*=fast",
            "override (environment: require fast for norm.*)",
            "unknown backend 'fast'",
            id="backend that is not there",
        ),
        pytest.param(
            "ATTNHUB_BACKEND",
            "avoid:reference",
            "ATTNHUB_BACKEND",
            "override mode 'avoid': use one of require, prefer, deny",
            id="mode that is not there",
        ),
        pytest.param(
            "ATTNHUB_PLUGINS",
            "-gone",
            "ATTNHUB_PLUGINS",
            "no plugin 'gone' is installed",
            id="plugin that is not there",
        ),
        pytest.param(
            "ATTNHUB_PROFILE", "no/such.json", "ATTNHUB_PROFILE", "is not a profile", id="profile"
        ),
    ],
)
def test_wrong_values(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    found = _problems(cli)
    assert list(found) == [what]
    assert why in found[what]


def test_overrides_in_force_are_listed_in_order(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNHUB_BACKEND", "prefer:reference,deny:norm.*=reference")
    with attnhub.use("reference", op="attention"):
        rules = cli("doctor", "--json").json["overrides"]
    assert [(r["scope"], r["mode"], r["op"]) for r in rules] == [
        ("use", "require", "attention"),
        ("environment", "deny", "norm.*"),
        ("environment", "prefer", "*"),
    ]


def _install_copy(folder: Path, version: str, *, recorded: bool = True) -> None:
    """A distribution with a plugin, as an installer leaves it."""
    package = folder / "shadow_plugin" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("")
    info = folder / f"shadow_plugin-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: shadow-plugin\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text("[attnhub-test]\nshadow = shadow_plugin\n")
    if recorded:
        (info / "RECORD").write_text("shadow_plugin/__init__.py,,\n")


def test_one_copy_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_copy(tmp_path / "a", "1.0")
    monkeypatch.syspath_prepend(tmp_path / "a")
    monkeypatch.syspath_prepend(tmp_path / "a")  # the same folder twice
    assert shadowing.shadowed("attnhub-test") == []


def test_a_second_copy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("a", "1.0"), ("b", "0.9")):
        _install_copy(tmp_path / folder, version)
    monkeypatch.syspath_prepend(tmp_path / "b")
    monkeypatch.syspath_prepend(tmp_path / "a")
    a, b = (tmp_path / "a").resolve(), (tmp_path / "b").resolve()
    assert shadowing.shadowed("attnhub-test") == [
        f"shadow-plugin 1.0 in {a} hides 0.9 in {b}; uninstall one of them"
    ]


def test_a_module_from_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_copy(tmp_path / "a", "1.0")
    (tmp_path / "here" / "shadow_plugin").mkdir(parents=True)
    (tmp_path / "here" / "shadow_plugin" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "a")
    monkeypatch.syspath_prepend(tmp_path / "here")
    (fault,) = shadowing.shadowed("attnhub-test")
    home = (tmp_path / "a" / "shadow_plugin").resolve()
    assert f"imported from {(tmp_path / 'here' / 'shadow_plugin').resolve()}" in fault
    assert f"shadow-plugin 1.0 is installed from {home}" in fault


def test_an_editable_copy_is_compared_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "my source"
    _install_copy(tmp_path / "site", "1.0", recorded=False)
    (tmp_path / "site/shadow_plugin").rename(tmp_path / "moved")
    source.mkdir()
    (tmp_path / "moved").rename(source / "shadow_plugin")
    url = {"url": source.resolve().as_uri(), "dir_info": {"editable": True}}
    info = tmp_path / "site/shadow_plugin-1.0.dist-info/direct_url.json"
    info.write_text(json.dumps(url))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(source)
    assert shadowing.shadowed("attnhub-test") == []
    info.write_text(json.dumps({"url": (tmp_path / "other").as_uri()}))
    (fault,) = shadowing.shadowed("attnhub-test")
    assert f"is installed from {(tmp_path / 'other').resolve()}" in fault
