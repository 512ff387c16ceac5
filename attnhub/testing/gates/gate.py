"""What a kernel may take and must be made of, and the comparison with what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from attnhub.errors import InvalidArgument
from attnhub.testing.gates.building import Build

#: ptxas gave up on what makes the kernel fast: wgmma is serialised, or setmaxnreg is ignored.
_NEVER_ALLOWED = ("C7508", "C7510", "C7511", "C7514", "C7515")
#: CPU time differs between machines, so a budget is broken only at so many times its value.
_TOLERATED = 2.0


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A lower bound of a census, for counts that the compiler's unrolling decides."""

    count: int

    def __repr__(self) -> str:
        return f"AtLeast({self.count})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one kernel must keep, by each compiler.

    Args:
        max_registers: of a thread; None for as many as the launch bounds let it have.
        max_smem: bytes of static shared memory; None for no bound.
        spills: bytes spilled, stored and loaded together.
        stack: bytes of a thread's stack.
        census: how many of an instruction there are, exactly or :class:`AtLeast`. ``"LDG"`` counts
            all of that name, ``"LDG.128"`` those with that modifier.
        forbidden: instructions that must not occur. Those of local memory, unless said otherwise.
        allowed_warnings: codes that are known and harmless here, as ``"C7519"`` or ``"#177-D"``.
        cpu_seconds: the budget of a compilation; the gate fails beyond twice as many.

    Raises:
        InvalidArgument: a warning is allowed that says that ptxas serialised or ignored something.
    """

    max_registers: int | None = None
    max_smem: int | None = None
    spills: int = 0
    stack: int = 0
    census: Mapping[str, int | AtLeast] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ("LDL", "STL")
    allowed_warnings: tuple[str, ...] = ()
    cpu_seconds: float = 4.0

    def __post_init__(self) -> None:
        if never := sorted({*self.allowed_warnings} & {*_NEVER_ALLOWED}):
            raise InvalidArgument(
                f"allowed_warnings has {', '.join(never)}: a kernel with it is always slow. Change "
                "the kernel; docs/kernels/writing_a_kernel.md tells what each of them wants"
            )


class GateError(AssertionError):
    """A kernel is not what its gate says. ``violations`` has a line for each limit it breaks."""

    def __init__(self, build: Build, violations: tuple[str, ...]) -> None:
        self.build, self.violations = build, violations
        lines = "".join(f"\n  {violation}" for violation in violations)
        super().__init__(f"{build.spec}, by {build.compiler}, breaks its gate:{lines}")


def check(build: Build, gate: Gate) -> str:
    """Compare; returns what could not be compared on this machine and why, or ``""``.

    Raises:
        GateError: something differs. The message lists all that does, each with its limit.
    """
    if violations := tuple(_violations(build, gate)):
        raise GateError(build, violations)
    if build.instructions is None and (gate.census or gate.forbidden):
        return f"the rest holds, but instructions were not counted: {build.no_instructions}"
    return ""


def _violations(build: Build, gate: Gate) -> Iterator[str]:
    if gate.max_registers is not None and build.registers > gate.max_registers:
        yield f"max_registers={gate.max_registers}: it takes {build.registers}"
    if gate.max_smem is not None and build.smem > gate.max_smem:
        yield f"max_smem={gate.max_smem}: it takes {build.smem} bytes"
    if build.spill_stores + build.spill_loads > gate.spills:
        yield f"spills={gate.spills}: {build.spill_stores} bytes stored, {build.spill_loads} loaded"
    if build.stack > gate.stack:
        yield f"stack={gate.stack}: it takes {build.stack} bytes"
    if build.instructions is not None:
        yield from _miscounts(build, gate)
    for notice in build.notices:
        if notice.code not in gate.allowed_warnings:
            yield f"allowed_warnings={gate.allowed_warnings}: {notice.text}"
    if build.cpu_seconds > _TOLERATED * gate.cpu_seconds:
        yield (
            f"cpu_seconds={gate.cpu_seconds}: {build.cpu_seconds:.2f} is more than "
            f"{_TOLERATED:g} times that"
        )


def _miscounts(build: Build, gate: Gate) -> Iterator[str]:
    for name, wanted in gate.census.items():
        found = build.count(name)
        enough = found >= wanted.count if isinstance(wanted, AtLeast) else found == wanted
        if not enough:
            yield f"census[{name!r}]={wanted!r}: there are {found}"
    for name in gate.forbidden:
        if found := build.count(name):
            yield f"forbidden={gate.forbidden}: {found} {name}"
