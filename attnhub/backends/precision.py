"""What the PyTorch backends compute in: the dtypes they were given, whatever autocast says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_autocast(run: Callable[..., None]) -> Callable[..., None]:
    """``run`` outside of any ``torch.autocast`` that would lower its matrix products."""

    @functools.wraps(run)
    def wrapped(*args: Any) -> None:
        device = next(x.device.type for x in args if isinstance(x, Tensor))
        if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
            run(*args)
            return
        with torch.autocast(device, enabled=False):
            run(*args)

    return wrapped
