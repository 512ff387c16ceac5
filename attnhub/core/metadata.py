"""Checks of index tensors shared by every op with metadata (attention, mla, page, gemm).

Host tensors are always checked by value. Device tensors are checked by shape, dtype and device;
by value only with ``validate=True``, which copies them to the host (a synchronisation).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnhub.core import check


def index_tensor(x: Tensor, name: str, length: int | None) -> None:
    """Require a contiguous 1-D int32 tensor, of ``length`` elements if known."""
    check.is_tensor(x, name)
    if x.dtype != torch.int32:
        check.fail(
            f"{name} has dtype {check.dtype_name(x.dtype)}, needs int32; use {name}.to(torch.int32)"
        )
    if x.dim() != 1 or (length is not None and x.numel() != length):
        check.shape(x, name, (length if length is not None else "n",))
    if not x.is_contiguous():
        check.fail(f"{name} is not contiguous; call {name}.contiguous()")


def host_copy(x: Tensor, *, validate: bool) -> Tensor | None:
    """The tensor if it is on the host, a copy if ``validate``, else None (not looked at)."""
    if x.device.type == "cpu":
        return x
    return x.cpu() if validate else None


def indptr_values(values: Tensor, name: str) -> list[int]:
    """Check 0 = p[0] <= p[1] <= ... and return the list."""
    p: list[int] = values.tolist()
    if not p:
        check.fail(f"{name} is empty, needs [batch + 1] with a leading 0")
    if p[0] != 0:
        check.fail(f"{name}[0] is {p[0]}, needs 0")
    if p != sorted(p):  # quick, since it is sorted
        i = next(i for i in range(1, len(p)) if p[i] < p[i - 1])
        check.fail(
            f"{name} decreases at {i} ({p[i - 1]} to {p[i]}); needs cumulative lengths, "
            "as in cumsum([0, *lengths])"
        )
    return p


def check_indptr(values: Tensor, name: str) -> None:
    """Check what ``indptr_values`` does, without a list of them."""
    p = values.numpy()
    if p.size > 1 and p[0] == 0 and not (p[1:] < p[:-1]).any():
        return
    indptr_values(values, name)  # says what is wrong


def in_range(values: Tensor, name: str, low: int, high: int | None, what: str) -> None:
    """Check ``low <= values < high`` and name the first that is not."""
    if not values.numel():
        return
    bad = values < low if high is None else (values < low) | (values >= high)
    if bad.any():
        at = int(bad.nonzero()[0])
        limit = f">= {low}" if high is None else f"{low} to {high - 1}"
        check.fail(f"{name}[{at}] is {int(values[at])}, needs {limit} ({what})")
