"""Gates as pytest cases: each kernel by each compiler, with a row in the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnhub.jit import KernelSpec, discover
from attnhub.testing.gates import table
from attnhub.testing.gates.building import build
from attnhub.testing.gates.gate import Gate, GateError, check

_COMPILERS = ("nvrtc", "nvcc")

#: The ``record_property`` fixture of pytest, by which rows reach the end of the session.
Record = Callable[[str, object], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel by one compiler."""

    spec: KernelSpec
    gate: Gate
    compiler: str

    def check(self, record: Record) -> str:
        """Compile and compare; returns why that could not be done here, or ``""``.

        Raises:
            GateError: the kernel breaks its gate.
            CompileError: it does not compile.
        """
        finding = {f.name: f for f in discover()}[self.compiler]
        if finding.compiler is None:
            record(table.PROPERTY, table.skipped(self.spec, self.compiler, finding.why))
            return finding.why
        made = build(self.spec, self.compiler)
        record(table.PROPERTY, table.row(made, self.gate))
        return check(made, self.gate)


def suite(kernels: Iterable[tuple[KernelSpec, Gate]]) -> Callable[[Case, Record], None]:
    """A pytest function with a case for each kernel and compiler; name it ``test_...``.

    Its cases have the marker ``attnhub_gates``, so that ``-m "not attnhub_gates"`` leaves them out.
    A case whose compiler is not on this machine is skipped with the reason. The session ends with a
    table of all kernels.

    Example::

        test_gates = suite([(scale_spec(arch="sm_90a"), Gate(max_registers=32))])
    """
    import pytest

    found = [
        pytest.param(
            Case(spec=spec, gate=gate, compiler=compiler),
            id=f"{spec.name}-{spec.arch}-{compiler}",
            marks=pytest.mark.attnhub_gates,
        )
        for spec, gate in kernels
        for compiler in _COMPILERS
    ]

    @pytest.mark.parametrize("case", found)
    def test_gates(case: Case, record_property: Record) -> None:
        try:
            why = case.check(record_property)
        except GateError as error:
            # The message says all, and a traceback would hide it.
            pytest.fail(str(error), pytrace=False)
        if why:
            pytest.skip(why)

    return test_gates
