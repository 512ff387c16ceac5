from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import attnhub
from attnhub.cli import output
from attnhub.core.decision import Decision
from attnhub.plugin import (
    AnyValue,
    Backend,
    Capability,
    Efficiency,
    MultipleOf,
    OneOf,
    Range,
    Subset,
)
from tests.cli.conftest import Cli, Install, Plugin
from tests.unit.repo_tree import ROOT

_NORM = ("explain", "norm.rmsnorm", "--device", "h100", "dtype=bfloat16", "hidden=4096")


def _norm(name: str, *, memory: float, hidden: OneOf | AnyValue) -> Backend:
    accepts = {"dtype": OneOf("bfloat16"), "hidden": hidden}
    return Backend(
        name=name,
        op="norm.rmsnorm",
        capability=Capability(devices=("cuda",), accepts=accepts),
        cost=Efficiency(compute=0.5, memory=memory, overhead_us=10),
        load="none:none",
    )


_PLUGIN = Plugin(
    "norms",
    _norm("half", memory=0.5, hidden=AnyValue()),
    _norm("fussy", memory=0.9, hidden=OneOf(8192)),
)


def test_json_is_the_decision(cli: Cli, install: Install) -> None:
    install(_PLUGIN)
    result = cli(*_NORM, "tokens=4096", "--json")
    assert result.code == 0
    decision = Decision.from_json(result.out)
    assert decision == attnhub.explain(
        "norm.rmsnorm", device="h100", dtype="bfloat16", hidden=4096, tokens=4096
    )
    assert decision.chosen is not None
    assert decision.chosen.name == "half"
    # x is read and written once at half of 3350 GB/s, after 10 us.
    assert decision.chosen.estimate.us == pytest.approx(10 + 2 * 4096 * 4096 * 2 / 1.675e6)
    (fussy,) = [r for r in decision.rejected if r.name == "fussy"]
    assert [(r.field, r.actual, r.accepted) for r in fussy.reasons] == [("hidden", "4096", "8192")]


def test_plain_text_is_the_decisions_own(cli: Cli, install: Install) -> None:
    install(_PLUGIN)
    result = cli(*_NORM)
    expected = attnhub.explain("norm.rmsnorm", device="h100", dtype="bfloat16", hidden=4096)
    assert result.out == f"{expected}\n"


def test_a_terminal_gets_every_row_and_note(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(_PLUGIN)
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    lines = cli(*_NORM, "tokens=4096", "--backend", "half").out.splitlines()
    words = [line.split() for line in lines]
    assert lines[0] == "norm.rmsnorm on NVIDIA H100 SXM (sm_90): half, 50.1 us (model) expected"
    assert ["half", "norms", "50.1", "us", "(model)", "chosen"] in words
    (fussy,) = [line for line in words if line[:1] == ["fussy"]]
    assert fussy[:5] == ["fussy", "norms", "32.3", "us", "(model)"]
    assert " ".join(fussy[5:]) == "hidden is 4096, needs 8192 (fits if hidden is 8192)"
    assert ["override", "argument:", "require", "half", "for", "norm.rmsnorm"] in words


def test_nothing_fits_is_exit_status_1(cli: Cli, install: Install) -> None:
    install(_PLUGIN)
    result = cli(*_NORM, "--backend", "fussy")
    assert result.code == 1
    assert "norm.rmsnorm on NVIDIA H100 SXM (sm_90): no backend fits" in result.out
    assert "hidden is 4096, needs 8192 (fits if hidden is 8192)" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--device", "h10"], "unknown device 'h10'; did you mean", id="device"),
        pytest.param(["--device", "cuda:99"], "device 'cuda:99': this machine has", id="no GPU 99"),
        pytest.param(["--device", "cuda"], "device 'cuda' has no index", id="which GPU"),
        pytest.param(["--backend", "hlf"], "unknown backend 'hlf'; did you mean 'half'", id="name"),
        pytest.param(
            ["--backend", "fa2_cuda"], "backend 'fa2_cuda' is not installed", id="not installed"
        ),
        pytest.param(["device=h100"], "device=h100: use --device", id="the device as a fact"),
        pytest.param(["op=attention"], "op=attention: write the op first", id="the op as a fact"),
        pytest.param(["backend=half"], "backend=half: use --backend", id="a backend as a fact"),
        pytest.param(["rows=7"], "unknown fact of 'norm.rmsnorm' 'rows'", id="fact"),
        pytest.param(["--variant", "causal"], "unknown fact of 'norm.rmsnorm' 'variant'", id="op"),
    ],
)
def test_wrong_use_is_one_line(cli: Cli, install: Install, words: list[str], message: str) -> None:
    install(_PLUGIN)
    result = cli(*_NORM, *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1


def test_missing_facts_are_named(cli: Cli) -> None:
    result = cli("explain", "norm.rmsnorm", "--device", "cpu", "dtype=float16")
    assert result.err == "error: 'norm.rmsnorm' also needs the facts hidden\n"


def test_the_device_defaults_to_this_machine(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    words = ("norm.rmsnorm", "dtype=float16", "hidden=64", "tokens=1", "--json")
    assert cli("explain", *words).json["device"] == "cpu"


def test_the_environment_decides_and_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNHUB_BACKEND", "norm.*=reference")
    data = cli(*_NORM, "--json").json
    assert data["overrides"] == ["environment: require reference for norm.*"]
    assert data["ranked"][0]["name"] == "reference"


def _attention(name: str, cost: Efficiency, sm: Range, page_size: object) -> Backend:
    halves = OneOf("float16", "bfloat16")
    accepts = {
        "kv": OneOf("ragged", "paged"),
        "page_size": page_size,
        "num_qo_heads": AnyValue(),
        "num_kv_heads": AnyValue(),
        "head_dim_qk": OneOf(64, 128),
        "head_dim_vo": OneOf(64, 128),
        **dict.fromkeys(("q_dtype", "kv_dtype", "out_dtype"), halves),
        "features": Subset("causal", "window"),
    }
    sheet = Capability(devices=("cuda",), sm=sm, accepts=accepts)  # type: ignore[arg-type]
    return Backend(name=name, op="attention", capability=sheet, cost=cost, load="none:none")


_KERNELS = Plugin(
    "kernels",
    _attention("good", Efficiency(compute=0.6, memory=0.85, overhead_us=5), Range(80), AnyValue()),
    _attention("large_pages", Efficiency(compute=0.7, memory=0.9), Range(80), MultipleOf(64)),
    _attention("next_arch", Efficiency(compute=0.7, memory=0.95), Range(100), AnyValue()),
)


def test_golden_llama3_70b_decode(
    cli: Cli, install: Install, golden: Callable[[Path, str], None]
) -> None:
    """What a user reads for one decode step of 64 requests of 8192 tokens on one H100."""
    install(_KERNELS)
    facts = "num_qo_heads=64 num_kv_heads=8 head_dim=128 dtype=bfloat16 kv=paged:16"
    sizes = "batch=64 qo_len=1 kv_len=8192 tokens=64 kv_tokens=524288"
    words = ("attention", *facts.split(), *sizes.split(), "--variant", "causal")
    result = cli("explain", *words, "--device", "h100")
    data = json.loads(cli("explain", *words, "--device", "h100", "--json").out)
    # K and V of every request once, Q and O once: 2.15 GB at 85 % of 3350 GB/s, after 5 us.
    num_bytes = 524288 * 8 * 256 * 2 + 64 * 64 * 256 * 2
    assert data["ranked"][0]["name"] == "good"
    assert data["ranked"][0]["estimate"]["us"] == pytest.approx(5 + num_bytes / (0.85 * 3.35e6))
    golden(ROOT / "tests/golden/explain_llama3_70b_decode_h100.txt", result.out)
