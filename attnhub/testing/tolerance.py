"""The one table of tolerances: what a result may differ from its reference, per input dtype.

The rows are stated once, each with the arithmetic that causes the error, and are never widened to
make a test pass. They hold for inputs drawn from a standard normal distribution; data of another
magnitude uses :meth:`Tolerance.scaled`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from attnhub.errors import InvalidArgument

Kind = Literal["output", "lse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a result may lie from its reference.

    An element passes if ``|actual - expected| <= max_abs + rel * |expected|``. The whole passes if
    the RMS of the error is at most ``rms`` times the RMS of the expected values, or at most ``rms``
    itself where ``rms_is_relative`` is false (an LSE is a logarithm: its absolute error is what a
    merge of two states sees).
    """

    max_abs: float
    rel: float
    rms: float
    reason: str
    rms_is_relative: bool = True

    def scaled(self, factor: float) -> Tolerance:
        """Return this row for values ``factor`` times the size the table assumes.

        Attention without a softmax sums scores instead of averaging values, so its output grows
        with the number of keys: ``tolerance(torch.bfloat16).scaled(expected_rms)``.
        """
        if not factor > 0:
            raise InvalidArgument(f"factor={factor}: a tolerance is scaled by a positive number")
        rms = self.rms if self.rms_is_relative else self.rms * factor
        return replace(self, max_abs=self.max_abs * factor, rms=rms)


_OUTPUT: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(
        max_abs=1e-12,
        rel=1e-12,
        rms=1e-13,
        reason="float64 throughout: only the order of a few thousand sums differs",
    ),
    torch.float32: Tolerance(
        max_abs=2e-5,
        rel=2e-5,
        rms=4e-6,
        reason="float32 throughout, exp and tanh to a few ulp; tf32 products (3e-4) do not pass",
    ),
    torch.float16: Tolerance(
        max_abs=2.5e-3,
        rel=2e-3,
        rms=8e-4,
        reason="11-bit operands: weights and output are each rounded once, sums are float32",
    ),
    torch.bfloat16: Tolerance(
        max_abs=2e-2,
        rel=1.6e-2,
        rms=6e-3,
        reason="8-bit operands: weights and output are each rounded once, sums are float32",
    ),
    torch.float8_e4m3fn: Tolerance(
        max_abs=1.25e-1,
        rel=6.25e-2,
        rms=4e-2,
        reason="products in float8: the weights are rounded to 4 bits (2.6 % RMS); a float8 cache "
        "that is widened before the products keeps the row of its query's dtype",
    ),
    torch.float8_e5m2: Tolerance(
        max_abs=2.5e-1,
        rel=1.25e-1,
        rms=8e-2,
        reason="products in float8: the weights are rounded to 3 bits (5.2 % RMS); a float8 cache "
        "that is widened before the products keeps the row of its query's dtype",
    ),
}

_LSE: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(
        max_abs=1e-6,
        rel=2e-7,
        rms=5e-7,
        rms_is_relative=False,
        reason="computed in float64 but stored in float32, the dtype of every LSE",
    ),
    torch.float32: Tolerance(
        max_abs=2e-5,
        rel=2e-6,
        rms=5e-6,
        rms_is_relative=False,
        reason="float32 dot products over the head dim, then one logarithm",
    ),
    torch.float16: Tolerance(
        max_abs=2.5e-3,
        rel=5e-4,
        rms=6e-4,
        rms_is_relative=False,
        reason="a rotated or scaled query and key are each rounded once to 11 bits",
    ),
    torch.bfloat16: Tolerance(
        max_abs=2e-2,
        rel=4e-3,
        rms=4e-3,
        rms_is_relative=False,
        reason="a rotated or scaled query and key are each rounded once to 8 bits",
    ),
    torch.float8_e4m3fn: Tolerance(
        max_abs=2e-2,
        rel=4e-3,
        rms=4e-3,
        rms_is_relative=False,
        reason="float8 operands are exact here, but float8 matrix units sum in about 14 bits",
    ),
    torch.float8_e5m2: Tolerance(
        max_abs=2e-2,
        rel=4e-3,
        rms=4e-3,
        rms_is_relative=False,
        reason="float8 operands are exact here, but float8 matrix units sum in about 14 bits",
    ),
}


def tolerance(dtype: torch.dtype, *, kind: Kind = "output") -> Tolerance:
    """Return the row for inputs of ``dtype``: for an attention output or for its LSE.

    Example::

        >>> tolerance(torch.bfloat16).rms
        0.006
    """
    tables = {"output": _OUTPUT, "lse": _LSE}
    if kind not in tables:
        raise InvalidArgument(f"kind={kind!r}: accepted are 'output' and 'lse'")
    if dtype not in tables[kind]:
        known = ", ".join(str(known).removeprefix("torch.") for known in tables[kind])
        raise InvalidArgument(f"dtype={dtype}: the tolerance table has {known}")
    return tables[kind][dtype]
