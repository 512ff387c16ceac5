"""The conformance suite of a backend, generated from what its capability sheets declare.

Every declared corner must run through the public API, with the backend required, and agree with the
reference; every undeclared neighbour must be refused with a reason that names the field. A third
party's whole test file::

    from attnhub.testing.conformance import suite

    test_conformance = suite("my_backend")

Results are compared as the op says: bit by bit, within the tolerance of their dtype or, for draws,
as a histogram with the exact distribution. Draws are also repeated with equal seeds, deterministic
problems are run twice and request by request, and both are compared bit by bit. What a machine
cannot run (no GPU, a probe that declines) is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import attnhub
from attnhub.errors import BackendUnsupported, UnknownName
from attnhub.plugin import Backend, Call, Code, Device, Op, Problem, Reason, describe, registry
from attnhub.testing.cases import Adapter, Results, adapter, named, workload_calls
from attnhub.testing.compare import Mismatch, assert_close
from attnhub.testing.corners import Corner, Grid, applies, field_of
from attnhub.testing.distribution import assert_distributed
from attnhub.testing.tolerance import tolerance

if TYPE_CHECKING:
    from attnhub import Decision

#: Devices that stand for a GPU this machine does not have: dispatch is tested on them, not numbers.
_STAND_INS = ("h100", "a100", "l40s", "b200", "rtx5090")
#: Reasons that are about this machine, not about the problem.
_NOT_HERE = (Code.VERSION, Code.PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend of one op on one device."""

    backend: Backend
    op: Op
    device: Device
    adapter: Adapter

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors lie."""
        device = self.device
        return torch.device("cuda", device.index) if device.type == "cuda" else torch.device("cpu")

    def __str__(self) -> str:
        return f"{self.backend.name!r} of {self.op.name!r} on {self.device}"


class Nonconformance(AssertionError):
    """A backend does not do what it declares. ``subject`` and ``problem`` say which, and where."""

    def __init__(self, subject: Subject, problem: Problem | None, what: str) -> None:
        super().__init__(f"{subject} does not conform: {what}\n  problem: {problem or 'none'}")
        self.subject, self.problem = subject, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test: ``check()`` returns why it could not run here, or ``""`` if it passed.

    It raises :class:`Nonconformance`, with the problem and what went wrong, if it failed.
    """

    id: str
    subject: Subject
    check: Callable[[], str]


def suite(backend: str, *, op: str = "", pairs: int = 24, seed: int = 0) -> Callable[[Case], None]:
    """A pytest function with one parameter a case; assign it to a name that begins with ``test_``.

    Args:
        backend: the name it is registered by.
        op: one of its ops; default all of them.
        pairs: how many corners of two values, besides those of one.
        seed: draws the pairs.

    Raises:
        UnknownName: no backend has that name, or it has no such op.

    Example::

        test_conformance = suite("flex", op="attention")
    """
    import pytest

    found = [
        pytest.param(case, id=case.id, marks=[pytest.mark.attnhub_gpu] if _needs_gpu(case) else [])
        for case in cases(backend, op=op, pairs=pairs, seed=seed)
    ]

    @pytest.mark.parametrize("case", found)
    def test_conformance(case: Case) -> None:
        if why := case.check():
            pytest.skip(why)

    return test_conformance


def _needs_gpu(case: Case) -> bool:
    device = case.subject.device
    return device.type == "cuda" and not device.simulated


def cases(backend: str, *, op: str = "", pairs: int = 24, seed: int = 0) -> Iterator[Case]:
    """The cases of :func:`suite`, to be run without pytest."""
    for subject in _subjects(backend, op):
        for name, check in _checks(subject, pairs, seed):
            place = "stand-in" if subject.device.simulated else subject.device.type
            yield Case(id=f"{subject.op.name}-{place}-{name}", subject=subject, check=check)


def _subjects(name: str, op: str) -> Iterator[Subject]:
    hub = registry()
    ops = [hub.op(op)] if op else list(hub.ops.values())
    found = [(o, b) for o in ops for b in hub.backends(o.name) if b.name == name]
    if not found:
        known = {b.name for o in ops for b in hub.backends(o.name)}
        raise UnknownName(f"backend of {op!r}" if op else "backend", name, known)
    for each, backend in found:
        for device in _devices(backend):
            yield Subject(backend=backend, op=each, device=device, adapter=adapter(each))


def _devices(backend: Backend) -> Iterator[Device]:
    """What the sheets apply to: the CPU, the GPU here; a stand-in for a backend of GPUs only."""
    here = [describe("cpu")]
    if torch.cuda.is_available():
        here.append(describe("cuda:0"))
    for devices in (here, map(describe, _STAND_INS)):
        fitting = [d for d in devices if any(applies(sheet, d) for sheet in backend.sheets())]
        yield from fitting if devices is here else fitting[:1]
        if fitting:
            return


def _checks(subject: Subject, pairs: int, seed: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and check of each case."""
    hub = registry()
    cls = hub.problem_class(subject.op.name)
    if fault := hub.check(subject.backend, cls):
        yield "capability", partial(_fail, subject, None, fault)
        return
    grid = Grid(backend=subject.backend, cls=cls, shape=subject.adapter, device=subject.device)
    if subject.adapter.callable:
        for corner in (*grid.declared(), *grid.pairs(pairs, seed)):
            yield f"serves-{corner}", partial(_serve, subject, corner)
    elif not subject.device.simulated:
        for call in workload_calls(subject.op, subject.torch_device):
            yield f"serves-{call.name}", partial(_workload, subject, call)
    for corner in grid.refused():
        yield f"refuses-{corner}", partial(_refuse, subject, corner)


def _fail(subject: Subject, problem: Problem | None, what: str) -> str:
    raise Nonconformance(subject, problem, what)


# -- what is declared must run -----------------------------------------------------------------


def _serve(subject: Subject, corner: Corner) -> str:
    problem = corner.problem
    if problem is None:
        if not corner.pinned:
            _fail(subject, None, f"no call fits its sheets; the nearest one fails by: {corner.why}")
        return f"declared, but no call with it fits: {corner.why}"
    reasons = _reasons(subject, _explain(subject, problem))
    if reasons is not None:
        said = "; ".join(map(str, reasons))
        if all(reason.code in _NOT_HERE for reason in reasons):
            return said
        _fail(subject, problem, f"a sheet declares this, but dispatch rejects it: {said}")
    if subject.device.simulated:
        return f"dispatched for {subject.device}, but there is no such GPU here to run on"
    for call in subject.adapter.calls(problem, subject.torch_device):
        _compare(subject, problem, call)
    return ""


def _workload(subject: Subject, call: Call) -> str:
    try:
        with attnhub.use(subject.backend.name, op=subject.op.name):
            call.run()
    except BackendUnsupported as error:
        return str(error)
    _compare(subject, None, call)
    return ""


def _compare(subject: Subject, problem: Problem | None, call: Call) -> None:
    actual = _outputs(subject, problem, call)
    expected = _outputs(subject, problem, call, reference=True)
    if actual.keys() != expected.keys():
        _fail(subject, problem, f"{call.name}: it returned {list(actual)}, not {list(expected)}")
    for name, wanted in expected.items():
        try:
            _judge(subject.op.compare, call, name, actual[name], wanted)
        except Mismatch as error:
            raise Nonconformance(subject, problem, f"{call.name}: {error}") from error
    deterministic = getattr(problem, "deterministic", False)
    if deterministic or subject.op.compare == "distribution":
        again = _outputs(subject, problem, call)
        _same(subject, problem, f"{call.name}, run twice", again, actual)
    for name, rows, run in call.parts if deterministic else ():
        part = _outputs(subject, problem, Call(name=name, run=run))
        whole = {key: x[rows] for key, x in actual.items()}
        _same(subject, problem, f"{call.name}, {name}", part, whole)


def _outputs(
    subject: Subject, problem: Problem | None, call: Call, *, reference: bool = False
) -> Results:
    backend = "reference" if reference else subject.backend.name
    run = (reference and call.expect) or call.run
    try:
        with attnhub.use(backend, op=subject.op.name):
            # Copies: a call may return the same memory every time.
            return {name: x.clone() for name, x in named(run()).items()}
    except Exception as error:
        what = f"{call.name}: {backend!r} raised {type(error).__name__}: {error}"
        raise Nonconformance(subject, problem, what) from error


def _judge(
    compare: str, call: Call, name: str, actual: torch.Tensor, expected: torch.Tensor
) -> None:
    """By the op's word: equal bits, close values, or draws of a distribution."""
    if compare == "distribution":
        if expected.is_floating_point() and not actual.is_floating_point():
            assert_distributed(actual, expected, name=name)
            return
        # Two sets of draws, from a workload: nothing says what they are drawn from.
        expected = actual if _form(actual) == _form(expected) else expected
        compare = "equal"
    if compare == "equal":
        bits = _bits(actual), _bits(expected)
        assert_close(*(bits if _form(actual) == _form(expected) else (actual, expected)), name=name)
        return
    kind: Any = "lse" if name == "lse" else "output"
    allowed = None
    if actual.is_floating_point():
        allowed = tolerance(call.row or actual.dtype, kind=kind)
        if call.grows and kind == "output" and expected.numel():
            rms = float(expected.double().square().mean().sqrt())
            allowed = allowed.scaled(max(rms, 1.0))
    assert_close(actual, expected, kind=kind, tolerance=allowed, name=name)


def _same(
    subject: Subject, problem: Problem | None, what: str, actual: Results, expected: Results
) -> None:
    for name, wanted in expected.items():
        if not torch.equal(_bits(actual[name]), _bits(wanted)):
            differ = int((_bits(actual[name]) != _bits(wanted)).sum())
            _fail(subject, problem, f"{what}: {name} differs in {differ} of {wanted.numel()} bytes")


def _form(x: torch.Tensor) -> tuple[Any, ...]:
    return x.shape, x.dtype


def _bits(x: torch.Tensor) -> torch.Tensor:
    # A copy: to a view, the odd strides that a tensor of no elements may have would matter.
    packed = x.clone(memory_format=torch.contiguous_format)
    return (packed if x.dim() else packed.reshape(1)).view(torch.uint8)


# -- what is not declared must be refused ------------------------------------------------------


def _refuse(subject: Subject, corner: Corner) -> str:
    problem = corner.problem
    assert problem is not None
    (field,) = corner.pinned
    _names(subject, problem, field, _explain(subject, problem), "explain")
    if subject.device.simulated or not subject.adapter.callable:
        return ""
    call = next(iter(subject.adapter.calls(problem, subject.torch_device)))
    try:
        with attnhub.use(subject.backend.name, op=subject.op.name):
            call.run()
    except BackendUnsupported as error:
        _names(subject, problem, field, error.decision, "BackendUnsupported")
        return ""
    except Exception as error:
        what = f"it must raise BackendUnsupported, but raised {type(error).__name__}: {error}"
        raise Nonconformance(subject, problem, what) from error
    return _fail(subject, problem, f"no sheet declares {corner}, but the call ran")


def _names(subject: Subject, problem: Problem, field: str, decision: Decision, where: str) -> None:
    """Require a reason about ``field``."""
    reasons = _reasons(subject, decision)
    if reasons is None:
        _fail(subject, problem, f"no sheet declares this {field}, but dispatch accepts it")
    facts = problem.facts()
    if not any(field_of(reason.field, facts) == field for reason in reasons or ()):
        said = "; ".join(map(str, reasons or ())) or "none"
        _fail(subject, problem, f"the reasons in {where} do not name {field!r}: {said}")


def _explain(subject: Subject, problem: Problem) -> Decision:
    return attnhub.explain(
        subject.op.name, device=subject.device, backend=subject.backend.name, **problem.facts()
    )


def _reasons(subject: Subject, decision: Decision) -> Iterable[Reason] | None:
    """Why this backend was rejected; None if it was not."""
    rejected = [r for r in decision.rejected if r.name == subject.backend.name]
    return rejected[0].reasons if rejected else None
