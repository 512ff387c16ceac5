"""Compare a result with its reference, and say exactly where and how they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from attnhub.errors import InvalidArgument
from attnhub.testing.tolerance import Kind, Tolerance
from attnhub.testing.tolerance import tolerance as table_row

Check = Literal["equal", "shape", "dtype", "nan", "inf", "error"]
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One element of both tensors, at ``index``."""

    index: tuple[int, ...]
    actual: float
    expected: float

    def __str__(self) -> str:
        return f"{self.index}: got {self.actual:.9g}, expected {self.expected:.9g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The facts of one comparison; ``check`` names the first check that failed, or "equal".

    ``max_abs``, ``max_rel`` and ``rms`` describe the error over the elements that are finite in
    both tensors, and ``worst`` is where it is largest. ``beyond`` counts the elements that fail the
    check, ``samples`` holds the first of them in row-major order.
    """

    check: Check
    detail: str
    total: int = 0
    beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    rms: float = 0.0
    worst: Sample | None = None
    samples: tuple[Sample, ...] = ()

    def __str__(self) -> str:
        lines = [self.detail]
        if self.worst is not None:
            lines.append(f"  max error {self.max_abs:.3g} at {self.worst}")
            lines.append(f"  max relative error {self.max_rel:.3g}")
        if self.samples:
            lines.append(f"  first {len(self.samples)} of {self.beyond} elements:")
            lines += [f"    {sample}" for sample in self.samples]
        return "\n".join(lines)


class Mismatch(AssertionError):
    """Two tensors that should agree do not; ``facts`` holds the :class:`Comparison`."""

    def __init__(self, name: str, facts: Comparison) -> None:
        super().__init__(f"{name or 'result'}: {facts}")
        self.name = name
        self.facts = facts


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    kind: Kind = "output",
    tolerance: Tolerance | None = None,
    name: str = "",
) -> None:
    """Raise :class:`Mismatch` unless ``actual`` agrees with ``expected``.

    Shapes come first, then the positions of NaN and of each infinity, then the maximum and the RMS
    of the error, computed in float64 on the device of ``actual``. Integer and bool tensors must be
    equal.

    Args:
        actual: The result, any shape.
        expected: The reference, same shape; float64 or float32 whatever the dtype of ``actual``.
        dtype: Row of the tolerance table: the dtype of the *inputs*. Default: that of ``actual``.
        kind: "output" or "lse", the column of that table.
        tolerance: Use this instead of the table.
        name: What is compared, for the message.

    Example::

        assert_close(o, o_ref, name="o")
        assert_close(lse, lse_ref, dtype=q.dtype, kind="lse", name="lse")
    """
    facts = judge(actual, expected, dtype=dtype, kind=kind, tolerance=tolerance)
    if facts.check != "equal":
        raise Mismatch(name, facts)


def judge(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    kind: Kind = "output",
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Return the facts that :func:`assert_close` judges by, without raising."""
    facts = _compare_form(actual, expected)
    if facts is not None:
        return facts
    if not actual.is_floating_point():
        return _compare_exact(actual, expected.to(actual.device))
    allowed = tolerance or table_row(dtype or actual.dtype, kind=kind)
    a = actual.detach().to(torch.float64)
    e = expected.detach().to(actual.device, torch.float64)
    return _compare_special(a, e) or _compare_values(a, e, allowed)


def _compare_form(actual: torch.Tensor, expected: torch.Tensor) -> Comparison | None:
    if actual.shape != expected.shape:
        detail = f"shape {list(actual.shape)}, expected {list(expected.shape)}"
        return Comparison(check="shape", detail=detail)
    if not actual.is_floating_point() or not expected.is_floating_point():
        if actual.dtype == expected.dtype:
            return None
        detail = f"dtype {actual.dtype}, expected {expected.dtype}"
        return Comparison(check="dtype", detail=detail)
    if torch.finfo(expected.dtype).eps > torch.finfo(actual.dtype).eps:
        raise InvalidArgument(
            f"expected is {expected.dtype} and actual {actual.dtype}: a reference must be at least "
            "as precise as what it judges; compute it in float32 or float64"
        )
    return None


def _compare_exact(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    differs = actual != expected
    if not bool(differs.any()):
        return Comparison(check="equal", detail="equal", total=actual.numel())
    detail = f"{int(differs.sum())} of {actual.numel()} elements differ"
    return _failure("error", detail, differs, actual, expected)


def _compare_special(actual: torch.Tensor, expected: torch.Tensor) -> Comparison | None:
    tests: tuple[tuple[Check, str, torch.Tensor, torch.Tensor], ...] = (
        ("nan", "NaN", actual.isnan(), expected.isnan()),
        ("inf", "+inf", actual.isposinf(), expected.isposinf()),
        ("inf", "-inf", actual.isneginf(), expected.isneginf()),
    )
    for check, word, got, wanted in tests:
        differs = got ^ wanted
        if bool(differs.any()):
            extra, missing = int((got & ~wanted).sum()), int((wanted & ~got).sum())
            detail = f"{word} at {extra} positions where none is expected, missing at {missing}"
            return _failure(check, detail, differs, actual, expected)
    return None


def _compare_values(actual: torch.Tensor, expected: torch.Tensor, allowed: Tolerance) -> Comparison:
    finite = expected.isfinite()
    count = int(finite.sum())
    if count == 0:
        return Comparison(check="equal", detail="equal", total=actual.numel())
    # Both tensors hold their NaN and infinities at the same places, so those carry no error.
    size = expected.abs().where(finite, 0.0)
    error = (actual - expected).abs().where(finite, 0.0)
    place = int(error.argmax())
    facts = Comparison(
        check="equal",
        detail="equal",
        total=actual.numel(),
        max_abs=float(error.flatten()[place]),
        max_rel=float((error / size).where(size > 0, 0.0).max()),
        rms=_rms(error, count),
        worst=_sample(place, actual, expected),
    )
    beyond = error > allowed.max_abs + allowed.rel * size
    rms_limit = allowed.rms * (_rms(size, count) if allowed.rms_is_relative else 1.0)
    num_beyond = int(beyond.sum())
    if num_beyond == 0 and facts.rms <= rms_limit:
        return facts
    detail = (
        f"{num_beyond} of {facts.total} elements beyond tolerance, "
        f"RMS error {facts.rms:.3g} (allowed {rms_limit:.3g})\n"
        f"  allowed |error| <= {allowed.max_abs:g} + {allowed.rel:g} * |expected| "
        f"({allowed.reason})"
    )
    samples = _samples(beyond, actual, expected)
    return replace(facts, check="error", detail=detail, beyond=num_beyond, samples=samples)


def _rms(values: torch.Tensor, count: int) -> float:
    return float((values.square().sum() / count).sqrt())


def _failure(
    check: Check,
    detail: str,
    differs: torch.Tensor,
    actual: torch.Tensor,
    expected: torch.Tensor,
) -> Comparison:
    return Comparison(
        check=check,
        detail=detail,
        total=actual.numel(),
        beyond=int(differs.sum()),
        samples=_samples(differs, actual, expected),
    )


def _samples(
    chosen: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor
) -> tuple[Sample, ...]:
    places = chosen.flatten().nonzero().flatten()[:_SHOWN].tolist()
    return tuple(_sample(place, actual, expected) for place in places)


def _sample(place: int, actual: torch.Tensor, expected: torch.Tensor) -> Sample:
    at = []
    for size in reversed(actual.shape):
        place, coordinate = divmod(place, size)
        at.append(coordinate)
    index = tuple(reversed(at))
    return Sample(index=index, actual=float(actual[index]), expected=float(expected[index]))
