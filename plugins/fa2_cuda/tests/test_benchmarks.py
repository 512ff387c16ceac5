"""The benchmark scripts run, here on the CPU, and write rows that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnhub.testing import results
from attnhub.testing.compare import Mismatch
from plugins.fa2_cuda.benchmarks import attention, host_time, merge

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")  # named only


def test_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = merge.Size(tokens=2, states=2, heads=1, dim=8), merge.Size(tokens=1, states=3, dim=8)
    monkeypatch.setattr(merge, "CPU_SIZES", sizes)
    monkeypatch.setattr(merge, "copy_ceiling", lambda device: 1e6)
    merge.main(["--device", "cpu", "--out", str(tmp_path)])
    found = results.read([tmp_path])
    assert [(row.case, row.metric) for row in found] == [
        ("merge_states 2x2x1x8 bfloat16", "time"),
        ("merge_states 2x2x1x8 bfloat16", "bandwidth"),
        ("merge_state 2x2x1x8 bfloat16", "time"),
        ("merge_state 2x2x1x8 bfloat16", "bandwidth"),
        ("merge_states 1x3x32x8 bfloat16", "time"),
        ("merge_states 1x3x32x8 bfloat16", "bandwidth"),
    ]
    us, gb_s = found[0].value, found[1].value
    assert gb_s == pytest.approx(3 * 2 * (2 * 8 + 4) / us / 1e3)
    assert found[1].share_of_ceiling == pytest.approx(gb_s / 1e6)


def test_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention, "copy_ceiling", lambda device: 1e3)
    monkeypatch.setattr(attention, "matmul_ceiling", lambda device: 2.0)
    facts = {"heads": (2, 1), "page_size": 4}
    cases = (
        attention.prompts(2, 9),
        attention.prompts(1, 8, page_size=1),
        attention.decode(2, 12, **facts),
        attention.decode(1, 5, **facts, is_small=True),
    )
    monkeypatch.setattr(attention, "CPU_CASES", cases)
    attention.main(["--device", "cpu", "--out", str(tmp_path)])
    found = results.read([tmp_path])
    assert [(row.case, row.metric, row.unit) for row in found] == [
        ("prefill B2 L9 32/8 ragged", "throughput, flushed", "TFLOP/s"),
        ("prefill B1 L8 32/8 page 1", "throughput, flushed", "TFLOP/s"),
        ("decode B2 L12 2/1 page 4", "bandwidth of K and V, flushed", "TB/s"),
        ("decode B2 L12 2/1 page 4", "bandwidth of K and V, in a graph", "TB/s"),
        ("decode B1 L5 2/1 page 4", "time, flushed", "us"),
        ("decode B1 L5 2/1 page 4", "time, in a graph", "us"),
    ]
    ceilings = [2.0, 2.0, 1.0, 1.0]
    for row, ceiling in zip(found, ceilings, strict=False):
        assert row.share_of_ceiling == pytest.approx(row.value / ceiling)
    assert [row.share_of_ceiling for row in found[4:]] == [None, None]
    assert "of ceiling" in capsys.readouterr().out


def test_what_attention_is_judged_by() -> None:
    cases = {str(case): case for case in attention.GPU_CASES}
    assert len(cases) == len(attention.GPU_CASES)
    prompt = cases["prefill B4 L4096 32/8 page 1"]
    assert prompt.flops == 4 * 4 * 4096**2 / 2 * 32 * 128
    assert prompt.num_layers(GPU) == 1
    many = cases["decode B64 L4096 32/32 page 16"]
    assert many.kv_bytes == 64 * 4096 * 32 * 128 * 2 * 2
    mixed = cases["decode B64 lognormal, mean 4096 32/8 page 16"].kv_lens
    assert sum(mixed) == 64 * 4096
    assert min(mixed) < 4096 // 4
    assert max(mixed) > 4096 * 2
    for case in attention.GPU_CASES:
        if case.is_decode:  # a graph whose caches the L2 cannot hold
            assert case.num_layers(GPU) >= attention.MIN_LAYERS
            assert case.num_layers(GPU) * case.kv_bytes >= attention.CLEAR_BYTES


def test_layers_are_different_caches() -> None:
    case = attention.decode(2, 12, page_size=4)
    batch = attention.Batch(case, CPU, num_layers=2)
    call, captured = batch.hub("reference"), batch.hub("reference", graph=True)
    first, second = (call(kv).clone() for kv in batch.layers)
    assert not torch.equal(first, second)
    assert torch.equal(captured(batch.layers[1]), second)


@pytest.mark.parametrize("case", attention.CPU_CASES, ids=str)
def test_wrong_attention_is_not_timed(
    case: attention.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention.check(case, CPU)
    wrong = lambda batch: ("wrong", lambda kv: torch.zeros_like(batch.q))  # noqa: E731
    monkeypatch.setattr(attention, "ours", wrong)
    with pytest.raises(Mismatch, match="small"):
        attention.check(case, CPU)


def test_peers_that_fail_or_disagree_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> attention.Call:
        raise ImportError("No module named 'absent'")

    def peers(batch: attention.Batch) -> dict[str, object]:
        return {
            "absent": absent,
            "wrong": lambda: lambda kv: torch.zeros_like(batch.q),
            "right": lambda: batch.hub("reference"),
        }

    monkeypatch.setattr(attention, "peers", peers)
    batch = attention.Batch(attention.prompts(1, 5), CPU, num_layers=1)
    assert list(attention.calls(batch)) == ["reference", "right"]
    without_absent, without_wrong = capsys.readouterr().out.splitlines()
    assert without_absent.endswith("without absent: ImportError: No module named 'absent'")
    assert "without wrong: Mismatch" in without_wrong


def test_host_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BATCHES", (3,)), ("CALLS", 1), ("ROUNDS", 2)):
        monkeypatch.setattr(host_time, name, value)
    host_time.main(["--device", "cpu", "--out", str(tmp_path)])
    found = results.read([tmp_path])
    assert [row.case for row in found] == [
        "plan, B3, metadata on the device",
        "plan, B3, lengths on the host",
        "plan, B3, all on the host",
        "run, B3, (K, V)",
        "run, B3, one cache",
    ]
    assert all(row.value > 0 and row.unit == "us" for row in found)
    # On a CPU all metadata lie there, and none of the budget is for that.
    assert found[0].share_of_ceiling == pytest.approx(found[0].value / host_time.PLAN_US)
    assert found[2].share_of_ceiling is None or found[2].share_of_ceiling > 0
