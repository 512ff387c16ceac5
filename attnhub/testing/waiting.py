"""Tests that nothing waits for a GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Within it, what would wait for a GPU raises RuntimeError, as far as torch knows.

    Example:
        >>> with no_waiting():
        ...     attn.plan(qo_indptr, kv)
    """
    torch.cuda.synchronize()
    with warnings.catch_warnings():  # torch warns that the mode is new
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
