"""To look as if a CUDA graph were being captured, where there is no GPU."""

from __future__ import annotations

import pytest
import torch


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on it looks as if a CUDA graph were being captured."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
