"""What the plugin says that it needs."""

from __future__ import annotations

import pytest
import torch

from attnhub.plugin import describe
from attnhub_triton_misc.probe import triton_runs


@pytest.mark.parametrize(("cuda", "missing"), [("13.0", []), (None, ["compiler"])])
def test_a_c_compiler_is_needed_where_triton_launches(
    cuda: str | None, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    found = [reason for reason in triton_runs(describe("h200")) if reason.field != "headers"]
    assert [reason.field for reason in found] == missing
    assert all("install gcc" in reason.hint for reason in found)


def test_triton_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [reason.hint for reason in triton_runs(describe("h200"))] == ["pip install triton"]
