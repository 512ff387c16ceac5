"""Calls: what the conformance suite runs to test a problem; each op's workloads module has them.

The module defines ``calls``, a mapping from op name to ``build(problem, device, generator)``, or to
:class:`Calls` where the suite should know more. ``build`` makes small inputs for any problem of the
op and returns ``run``, which makes one call of the public function, or yields :class:`Call`.

Example, an op whose outputs are close to its reference's::

    def _scale(problem, device, generator):
        x = torch.randn(5, problem.hidden, generator=generator).to(device)
        return lambda: my_family.scale(x)

    calls = {"my_family.scale": _scale}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnhub.core.device import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Makes one call and returns a tensor, a tuple of tensors, or outputs by name; an output called
#: "lse" is compared by that column of the tolerance table.
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the public API, and what it is compared with.

    Args:
        name: tells the calls of one problem apart.
        run: the call, made while the backend under test is required. It may be made several times,
            so it makes anew what the call overwrites.
        expect: what it is compared with, made while the reference is required; default ``run``
            itself. For draws (``Op.compare`` is "distribution"): under the name of each output, the
            exact probability of each outcome 0, 1, ..., float64 ``[outcomes]``.
        row: the row of the tolerance table; default the dtype of each output.
        grows: the outputs are sums, not averages, so that their tolerance grows with their RMS.
        parts: pieces of the batch on their own, as (name, their rows of the outputs, call); where
            a problem is ``deterministic`` they must come out bit for bit as in the whole.
    """

    name: str
    run: Run
    expect: Run | None = None
    row: torch.dtype | None = None
    grows: bool = False
    parts: Sequence[tuple[str, slice, Run]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How to call an op for any of its problems.

    Args:
        build: see the module docstring; the same inputs for equal generators. What it returns as a
            plain ``run`` may work in place: it is built anew for each backend.
        base: facts to start from; every other field starts at its default, else its first value.
        clashes: the fields whose values no call can have together on this device, such as a page
            size without pages. What the problem class itself refuses need not be named.
    """

    build: Callable[[Any, torch.device, torch.Generator], Run | Iterable[Call]]
    base: Mapping[str, Any] = field(default_factory=dict)
    clashes: Callable[[Mapping[str, Any], Device], set[str]] | None = None


def spaced(x: Tensor) -> Tensor:
    """A copy of floating ``x`` with a contiguous last dimension and NaN between its rows."""
    *outer, dim = x.shape
    gap = 16 // x.element_size()  # keeps the alignment that vector loads need
    whole = x.new_full((*outer, dim + gap), math.nan)
    whole[..., :dim] = x
    return whole[..., :dim]
