"""What a decision depends on: the product rather than the architecture, sizes in one bucketing."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnhub
from attnhub import Ragged, Variant
from attnhub.attn.problem import AttentionProblem
from attnhub.core import device as devices
from attnhub.core import problem as problems
from attnhub.core import profile as profiles
from attnhub.core.decision import Decision
from attnhub.core.profile import Profile
from attnhub.errors import InvalidArgument
from attnhub.plugin import Code, Range, Reason, hookimpl, isolated
from tests.core.fakes import EVERYTHING, Capability, backend, dispatcher, fixed, problem
from tests.unit.repo_tree import ROOT, python_files

_FACTS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 128, "dtype": "bfloat16"}
_PRESENT = [
    SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132),
    SimpleNamespace(name="NVIDIA H20", major=9, minor=0, multi_processor_count=78),
    SimpleNamespace(name="NVIDIA A100-SXM4-80GB", major=8, minor=0, multi_processor_count=108),
]


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with three kinds of GPU, where nobody may ask which is the current one."""

    def current_device() -> int:
        raise AssertionError("selection must not depend on the current device")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: _PRESENT[index])
    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    devices._cuda.cache_clear()
    yield
    devices._cuda.cache_clear()


def test_each_gpu_of_a_machine_gets_its_own_decision(three_gpus: None) -> None:
    """Two of one architecture with a sixth of the FLOPs between them, and one older."""
    dense = backend("dense", cost=lambda p: fixed(1e4 / p.device.tflops)(p))
    lean = backend("lean", cost=fixed(30.0), capability=Capability(sm=Range(90), complete=True))
    d = dispatcher(dense, lean)
    chosen = [d.decide(problem(f"cuda:{i}")).ranked[0].name for i in range(3)]
    assert chosen == ["dense", "lean", "dense"]
    named = [devices.describe(torch.device("cuda", i)) for i in range(3)]
    assert [(g.index, g.sm, g.num_sms, g.tflops) for g in named] == [
        (0, 90, 132, 989),
        (1, 90, 78, 148),
        (2, 80, 108, 312),
    ]


@pytest.mark.parametrize("error", [AssertionError, RuntimeError])
def test_a_gpu_that_is_not_there_is_said_so(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A failed probe of the device is no statement about architectures."""

    def absent(index: int) -> None:
        raise error("No CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "get_device_properties", absent)
    devices._cuda.cache_clear()
    message = r"cuda:5 cannot be used: No CUDA GPUs are available; give .*its name \('h100'\)"
    with pytest.raises(InvalidArgument, match=message):
        attnhub.explain("attention", device="cuda:5", **_FACTS)


def test_a_newer_architecture_is_served_by_what_allows_it_and_refused_by_name_elsewhere() -> None:
    with isolated():
        decision = attnhub.explain("attention", device="sm_130", kv=Ragged(), **_FACTS)
    assert [c.name for c in decision.ranked] == ["torch_varlen", "torch_sdpa", "reference"]
    hopper = backend("hopper", capability=Capability(complete=True, sm=Range(90, 90)))
    (row,) = (
        r
        for r in dispatcher(EVERYTHING, hopper).decide(problem("sm_130")).rejected
        if r.name == "hopper"
    )
    assert [str(reason) for reason in row.reasons] == ["sm is 130, needs 90 to 90"]


def driver_too_old(_: Any) -> list[Reason]:
    return [Reason(code=Code.VERSION, field="driver", actual="12.1", accepted=">= 12.3")]


def test_a_bound_on_the_toolkit_or_driver_is_a_reason() -> None:
    probe = "tests.field_reports.test_devices_and_sizes:driver_too_old"
    d = dispatcher(backend("newest", cost=fixed(1.0), probe=probe), EVERYTHING)
    decision = d.decide(problem("cpu"))
    assert [c.name for c in decision.ranked] == ["everything"]
    assert "driver is 12.1, needs >= 12.3" in str(decision)


def test_any_head_dim_gets_an_answer_that_lists_what_is_served() -> None:
    """32, 56, 80, 96, 576, ...: served somewhere, or refused with the accepted sizes."""
    for dim in (32, 40, 56, 72, 80, 96, 100, 576):
        facts = {**_FACTS, "head_dim": dim, "kv": Ragged(), "device": "h100"}
        with isolated():
            decision = attnhub.explain("attention", **facts)
        assert decision.chosen is not None
        rows = {r.name: r.reasons for r in decision.rejected}
        refused = {x.field: x.accepted for x in rows.get("torch_varlen", ())}
        fits = dim % 8 == 0 and dim <= 256
        assert refused == ({} if fits else dict.fromkeys(
            ("head_dim_qk", "head_dim_vo"), "a multiple of 8 up to 256"))  # fmt: skip


def _modules_with(name: str) -> dict[str, Any]:
    """The modules of attnhub that have a global of this name, and what it is."""
    found = {}
    for file in python_files("attnhub"):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        imported = (
            a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
        )
        defined = (n.name for n in tree.body if isinstance(n, ast.FunctionDef))
        if name in {*imported, *defined}:
            module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            found[module] = getattr(importlib.import_module(module), name)
    return found


def test_there_is_one_bucket_function() -> None:
    found = _modules_with("bucket")
    assert {"attnhub.core.problem", "attnhub.attn.functional"} <= found.keys()
    assert {id(function) for function in found.values()} == {id(problems.bucket)}


def test_what_was_measured_by_explain_is_found_by_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuner and call put 5 and 7 tokens into the same buckets, or the row would not be found."""
    measured = AttentionProblem.of(
        "cpu", kv="dense", num_qo_heads=4, num_kv_heads=2, head_dim=8, dtype="float32",
        batch=1, qo_len=5, kv_len=7, tokens=5, kv_tokens=7,
    )  # fmt: skip
    rows = {("reference", "attention", measured.signature()): 0.25}
    Profile(device="cpu", times=rows).save(tmp_path / "tuned.json")
    monkeypatch.setenv("ATTNHUB_PROFILE", str(tmp_path / "tuned.json"))
    profiles.load.cache_clear()
    heard: list[Decision] = []

    class Listener:
        @hookimpl
        def attnhub_on_decision(self, decision: Decision) -> None:
            heard.append(decision)

    q, k = torch.randn(5, 4, 8), torch.randn(7, 2, 8)
    with isolated() as registry:
        registry.register(Listener(), "listener")
        attnhub.attention(q, k, k)
        attnhub.attention(q[:3], k, k)  # another bucket: not measured, so not turned over
    profiles.load.cache_clear()
    chosen = [d.chosen for d in heard]
    assert [(c.name, c.estimate.source) for c in chosen if c] == [
        ("reference", "measured"),
        ("torch_sdpa", "model"),
    ]


def test_a_window_is_a_fact_that_costs_and_capabilities_see() -> None:
    """Not a mask that hides what was computed all the same."""
    sizes = {"batch": 1, "qo_len": 4096, "kv_len": 4096, "kv": "ragged"}
    works = {}
    for window in (None, (1023, 0), (127, 0)):
        variant = Variant(causal=True, window=window)
        p = AttentionProblem.of("h100", variant=variant, **_FACTS, **sizes)
        assert ("window" in p.features) is (window is not None)
        works[window] = p.work().flops
    assert works[(127, 0)] * 8 == works[(1023, 0)]
    assert works[(1023, 0)] < works[None]
