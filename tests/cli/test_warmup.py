"""`attnhub warmup`, with plugins whose planners list kernels, and a compiler that only pretends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnhub.core.env import environment
from attnhub.jit import Cache, compilers
from attnhub.jit.compilers import Compiler
from attnhub.jit.errors import NoCompiler
from attnhub.jit.store import Store
from attnhub.plugin import AnyValue, Backend, Capability, Efficiency, OneOf, Range
from tests.cli.conftest import Cli, Install, Plugin
from tests.cli.test_output import Terminal
from tests.jit.fakes import FakeCompiler, spec

CONFIG = str(Path(__file__).with_name("configs") / "llama_3_1_8b.json")


class Planner:
    """Lists one kernel for each hidden size, and one that all sizes need."""

    def specs(self, problem: Any) -> list[Any]:
        if problem.dtype == "float32":
            raise RuntimeError("no such kernel")
        arch = "sm_90a" if problem.device.sm == 90 else problem.device.arch
        return [
            spec(problem.hidden + 0.5, name=f"norm_{problem.hidden}", arch=arch),
            spec(0.5, name="shared", arch=arch),
        ]


def _norms(name: str = "quick", compute: float = 0.9) -> Backend:
    accepts = {"dtype": OneOf("bfloat16", "float16", "float32"), "hidden": AnyValue()}
    return Backend(
        name=name,
        op="norm.rmsnorm",
        capability=Capability(devices=("cuda",), sm=Range(80), accepts=accepts),
        cost=Efficiency(compute=compute, memory=compute),
        load="attnhub_test_planner:planner",
    )


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install) -> FakeCompiler:
    """No GPU, a cache of the test's own, the plugin, and the compiler of this machine."""
    module = ModuleType("attnhub_test_planner")
    module.planner = Planner()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path / "cache"))
    environment.cache_clear()
    fake = FakeCompiler(journal=tmp_path / "journal")
    monkeypatch.setattr(compilers, "choose", lambda *_, **__: fake)
    install(Plugin("quick_norms", _norms()))
    return fake


def _file(tmp_path: Path, *problems: dict[str, Any]) -> str:
    file = tmp_path / "problems.json"
    file.write_text(json.dumps(problems))
    return str(file)


NORM = {"op": "norm.rmsnorm", "dtype": "bfloat16", "hidden": 4096}


def test_a_model_says_what_it_needs_and_gets_it(cli: Cli, here: FakeCompiler) -> None:
    result = cli("warmup", CONFIG, "--device", "h100", "--json")
    assert result.code == 0
    assert (result.err, here.built()) == ("", ["4096.5", "0.5"])
    served = {(p["op"], p["backend"]): p for p in result.json["problems"]}
    norm = served["norm.rmsnorm", "quick"]
    assert norm["kernels"] == ["norm_4096", "shared"]
    # Both steps are served alike, and so are one line.
    assert norm["steps"] == ["decode", "prefill"]
    assert norm["problem"] == "dtype=bfloat16, hidden=4096"
    assert served["attention", "torch_sdpa"]["kernels"] is None
    assert served["sampling.sample", "reference"]["steps"] == ["decode"]
    kernels = result.json["kernels"]
    assert [(k["name"], k["arch"], k["origin"]) for k in kernels] == [
        ("norm_4096", "sm_90a", "built"),
        ("shared", "sm_90a", "built"),
    ]
    cache = Cache(result.json["cache"])
    assert {e.key for e in cache.entries()} == {k["key"] for k in kernels}
    assert result.json["seconds"] > 0


def test_the_second_time_all_is_there(cli: Cli, here: FakeCompiler, tmp_path: Path) -> None:
    words = ("warmup", _file(tmp_path, NORM), "--device", "h100")
    first, second = cli(*words).out, cli(*words).out
    assert "on NVIDIA H100 SXM (sm_90)\n" in first
    assert "norm.rmsnorm  -     quick    norm_4096  dtype=bfloat16, hidden=4096\n" in first
    assert "\n2 kernels: 2 built; " in first
    assert " CPU s by fake\n" in first
    assert "\n2 kernels: 2 in the cache; " in second
    assert second.endswith(f"kernels are kept in {tmp_path / 'cache'}\n")
    assert here.built() == ["4096.5", "0.5"]


def test_several_devices(cli: Cli, tmp_path: Path) -> None:
    words = ("--device", "sm_80", "--device", "h100", "--device", "sm_80", "--json")
    result = cli("warmup", _file(tmp_path, NORM), *words)
    assert [k["arch"] for k in result.json["kernels"]] == ["sm_80", "sm_80", "sm_90a", "sm_90a"]
    devices = [p["device"] for p in result.json["problems"]]
    assert devices == ["typical sm_80 (sm_80)", "NVIDIA H100 SXM (sm_90)"]


def test_problems_are_written_as_explain_takes_them(cli: Cli, tmp_path: Path) -> None:
    attention = {
        "op": "attention",
        "num_qo_heads": 32,
        "num_kv_heads": 8,
        "head_dim": [192, 128],
        "dtype": "float16",
        "kv": "paged:16",
        "variant": "causal,soft_cap=30",
        "batch": 64,
        "deterministic": True,
    }
    listed = {"op": "mla", "num_heads": 16, "dtype": "bfloat16", "page_size": 64}
    narrow = {"head_dim_ckv": 256, "head_dim_kpe": 32, "features": ["causal"]}
    file = _file(tmp_path, attention, {**listed, "causal": False}, {**listed, **narrow})
    result = cli("warmup", file, "--device", "h100", "--json")
    assert [(p["op"], p["steps"]) for p in result.json["problems"]] == [
        ("attention", []),
        ("mla", []),
        ("mla", []),
    ]
    facts = [set(p["problem"].split(", ")) for p in result.json["problems"]]
    assert {"features=causal+soft_cap", "head_dim_qk=192", "deterministic=True"} <= facts[0]
    assert "features=causal" not in facts[1]
    assert {"head_dim_ckv=256", "head_dim_kpe=32", "features=causal"} <= facts[2]


def test_a_required_backend_serves_what_it_can(cli: Cli, install: Install, tmp_path: Path) -> None:
    install(Plugin("slow_norms", _norms("slow", 0.01)))
    file = _file(tmp_path, NORM, {"op": "page.get_seq_lens"})
    words = ("--device", "h100", "--json")
    chosen = [
        [p["backend"] for p in cli("warmup", file, *words, *more).json["problems"]]
        for more in ((), ("--backend", "slow"))
    ]
    assert chosen == [["quick", "reference"], ["slow", "reference"]]
    result = cli("warmup", file, *words, "--backend", "slw")
    assert (result.code, result.out) == (2, "")
    assert "unknown backend 'slw'; did you mean 'slow'" in result.err


def test_what_nobody_serves_and_what_breaks_do_not_stop_the_rest(
    cli: Cli, here: FakeCompiler, tmp_path: Path
) -> None:
    file = _file(tmp_path, {**NORM, "dtype": "float32"}, NORM)
    result = cli("warmup", file, "--device", "h100", "--json")
    assert result.code == 1
    faults = [p["fault"] for p in result.json["problems"]]
    assert faults == ["RuntimeError: no such kernel", ""]
    assert here.built() == ["4096.5", "0.5"]
    assert result.err == "error: 1 of 2 calls failed\n"
    refused = cli("warmup", file, "--device", "sm_75", "--backend", "quick")
    assert refused.code == 1
    assert "no backend fits; quick: sm is 75, needs >= 80; reference: " in refused.out
    # That none are needed is not known.
    assert "no kernels" not in refused.out
    assert refused.err == "error: 2 of 2 calls failed\n"


def test_output_is_all_that_another_machine_needs(
    cli: Cli, here: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = _file(tmp_path, NORM), tmp_path / "cubins"
    built = cli("warmup", file, "--device", "h100", "--output", str(folder))
    assert built.out.endswith(f"kernels are written to {folder}\n")
    assert len(Store(folder).entries()) == 2

    def choose(*_: str, **__: str) -> Compiler:
        raise NoCompiler("no compiler here", {})

    monkeypatch.setattr(compilers, "choose", choose)
    monkeypatch.setenv("ATTNHUB_CUBIN_DIR", str(folder))
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path / "other machine"))
    environment.cache_clear()
    found = cli("warmup", file, "--device", "h100")
    assert (found.code, found.err) == (0, "")
    assert "\n2 kernels: 2 built ahead of time; " in found.out
    # What is written is always built here, so that nobody passes on what somebody else built.
    again = cli("warmup", file, "--device", "h100", "--output", str(tmp_path / "more"))
    assert (again.code, again.err) == (1, "error: no compiler here\n")


def test_a_kernel_that_does_not_compile(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = FakeCompiler(journal=tmp_path / "journal", refuses=("4096.5",))
    monkeypatch.setattr(compilers, "choose", lambda *_, **__: refusing)
    result = cli("warmup", _file(tmp_path, NORM), "--device", "h100")
    assert result.code == 1
    assert result.err.startswith("error: kernel 'norm_4096' for sm_90a does not compile:\n")
    assert 'kernel.cu(9): error: no "demo"\n' in result.err
    assert [e.name for e in Cache(tmp_path / "cache").entries()] == ["shared"]


def test_nothing_to_compile(cli: Cli, tmp_path: Path) -> None:
    result = cli("warmup", _file(tmp_path, {"op": "page.get_seq_lens"}), "--device", "h100")
    assert result.code == 0
    assert "nothing to compile" in result.out
    assert result.out.endswith("\nno kernels are needed\n")


def test_a_folder_and_options(cli: Cli, here: FakeCompiler, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Path(CONFIG).read_text())
    words = ("--dtype", "float16,float8_e4m3fn,float16", "--page-size", "64", "--jobs", "1")
    result = cli("warmup", str(tmp_path), "--device", "h100", *words, "--json")
    [attention] = [p for p in result.json["problems"] if p["op"] == "attention"]
    assert "kv_dtype=float8_e4m3fn, out_dtype=float16, page_size=64" in attention["problem"]
    assert here.journal.read_text().splitlines()[0] == "4096.5 jobs=1"


def test_a_terminal_sees_progress(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    cli("warmup", _file(tmp_path, NORM), "--device", "h100")
    assert "compiling" in screen.getvalue()
    assert "2/2" in screen.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["no/such"], "no/such: No such file or directory; give a", id="file"),
        pytest.param([CONFIG, "--compiler", "nvrt"], "unknown compiler 'nvrt'", id="compiler"),
        pytest.param([CONFIG, "--device", "h1000"], "unknown device 'h1000'", id="device"),
        pytest.param([CONFIG, "--device", "cpu"], "device 'cpu': kernels are compiled", id="cpu"),
        pytest.param([CONFIG, "--device", ""], "this machine has no GPU: kernels", id="none"),
        pytest.param([CONFIG, "--dtype", "bf16"], "q dtype 'bf16' is not supported", id="dtype"),
        pytest.param([CONFIG, "--dtype", "a,b"], "dtype=a,b: give one dtype, or three", id="two"),
    ],
)
def test_wrong_use(cli: Cli, words: list[str], message: str) -> None:
    words = words if "--device" in words else [*words, "--device", "h100"]
    result = cli("warmup", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "is not JSON", id="cut off"),
        pytest.param("3", "holds neither a model's config nor a list", id="a number"),
        pytest.param('["x"]', "problem 1: give an object such as", id="no object"),
        pytest.param('[{"op": "norm.rmsnrm"}]', "did you mean 'norm.rmsnorm'", id="op"),
        pytest.param(
            '[{"op": "norm.rmsnorm"}]', "problem 1: 'norm.rmsnorm' also needs", id="facts"
        ),
        pytest.param(
            '[{"op": "norm.rmsnorm", "dtype": "bfloat16", "hidden": 4096, "device": "h100"}]',
            "problem 1: device=h100: use --device",
            id="a device",
        ),
        pytest.param(
            '[{"op": "attention", "num_qo_heads": 1, "num_kv_heads": 1, "head_dim": 64, '
            '"dtype": "bfloat16", "variant": "casual"}]',
            "problem 1: unknown variant field 'casual'; did you mean 'causal'",
            id="a variant",
        ),
    ],
)
def test_a_file_that_makes_no_sense(cli: Cli, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    result = cli("warmup", str(tmp_path / "x.json"), "--device", "h100")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_options_of_a_model_do_not_go_with_a_list(cli: Cli, tmp_path: Path) -> None:
    words = ("--device", "h100", "--page-size", "16")
    result = cli("warmup", _file(tmp_path, NORM), *words)
    assert result.code == 2
    assert "leave --dtype and --page-size out" in result.err
