"""Pins what the compilers make of a kernel: registers, spills, instructions, warnings, CPU time.

A kernel that spills, or whose products ptxas serialises, still gives right results, so no test of
its numbers sees it. A gate compiles it for real, which needs no GPU, and compares. A whole
``tests/test_gates.py`` of a plugin::

    from attnhub.testing.gates import AtLeast, Gate, suite
    from attnhub_mine.kernels import scale_spec

    test_gates = suite(
        [
            (scale_spec(arch="sm_80"), Gate(max_registers=32, census={"LDG.128": 4})),
            (scale_spec(arch="sm_90a"), Gate(max_registers=32, census={"LDG.128": AtLeast(4)})),
        ]
    )

docs/kernels/writing_a_kernel.md tells how to find the numbers.
"""

from __future__ import annotations

from attnhub.testing.gates.building import Build, build
from attnhub.testing.gates.cases import suite
from attnhub.testing.gates.gate import AtLeast, Gate, GateError, check
from attnhub.testing.gates.log import Notice

__all__ = ["AtLeast", "Build", "Gate", "GateError", "Notice", "build", "check", "suite"]
