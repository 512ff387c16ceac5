"""The benchmark scripts run, here on the CPU, and write rows that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnhub.testing import results
from plugins.fa2_cuda.benchmarks import merge


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
