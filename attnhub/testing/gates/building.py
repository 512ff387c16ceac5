"""Compiles one kernel, without the cache, and says what became of it."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnhub.jit import CompileError, Compiler, KernelSpec, Unit, choose, render
from attnhub.jit.compilers.log import first_error
from attnhub.testing.gates import log as logs
from attnhub.testing.gates import sass
from attnhub.testing.gates.log import Notice, Usage

#: CPU time is that of the process, so nothing else may be compiled meanwhile.
_ALONE = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Usage):
    """What a compiler made of a kernel.

    ``instructions`` counts them by name with modifiers; None where they cannot be read, and then
    ``no_instructions`` says why. ``cpu_seconds`` is what the compiler took of all cores together.
    """

    spec: Any  # what was built: a KernelSpec, or what stands for a kernel that has none
    compiler: str
    notices: tuple[Notice, ...]
    instructions: Counter[str] | None
    no_instructions: str = ""
    cpu_seconds: float
    image: bytes
    log: str

    def count(self, name: str) -> int:
        """How many instructions have this name, as ``HMMA``, or ``LDG.128`` with a modifier.

        Raises:
            NoDisassembler: the instructions are not known.
        """
        if self.instructions is None:
            raise sass.NoDisassembler(self.no_instructions)
        return sass.count(self.instructions, name)

    def __str__(self) -> str:
        opcodes: Counter[str] = Counter()
        for name, times in (self.instructions or {}).items():
            opcodes[name.partition(".")[0]] += times
        counted = ", ".join(f"{opcode} {times}" for opcode, times in sorted(opcodes.items()))
        lines = [
            f"{self.spec} by {self.compiler}",
            f"cubin {len(self.image)} bytes, {self.cpu_seconds:.2f} CPU seconds",
            f"registers {self.registers}, smem {self.smem}, barriers {self.barriers}",
            f"stack {self.stack}, spills {self.spill_stores} stored, {self.spill_loads} loaded",
            counted or self.no_instructions,
            *(notice.text for notice in self.notices),
        ]
        return "\n  ".join(lines)


def build(spec: KernelSpec, compiler: str) -> Build:
    """Compile a kernel by ``"nvrtc"`` or ``"nvcc"``, as it is compiled for use, and measure.

    Raises:
        NoCompiler: that compiler is not on this machine.
        CompileError: the kernel does not compile. Its source and log are kept.

    Example:
        >>> print(build(spec, "nvcc"))
    """
    source = render.banner(spec) + render.render(spec)
    unit = Unit(spec=spec, folder=Path(tempfile.mkdtemp(prefix="attnhub-gates-")))
    unit.source.write_text(source, encoding="utf-8")
    cpu_seconds = _compile(choose(compiler), unit)
    log, image = unit.log.read_text(encoding="utf-8", errors="replace"), unit.cubin.read_bytes()
    shutil.rmtree(unit.folder)
    instructions, why = None, ""
    try:
        instructions = sass.census(sass.disassemble(image))
    except sass.NoDisassembler as error:
        why = str(error)
    return Build(
        **dataclasses.asdict(logs.usage(log)),
        spec=spec,
        compiler=compiler,
        notices=logs.notices(log),
        instructions=instructions,
        no_instructions=why,
        cpu_seconds=cpu_seconds,
        image=image,
        log=log,
    )


def _compile(compiler: Compiler, unit: Unit) -> float:
    """Compile, and return the CPU seconds that it took."""
    with _ALONE:
        start = _cpu_seconds()
        compiler.compile([unit], jobs=1, done=lambda _: None)
        seconds = _cpu_seconds() - start
    if unit.cubin.exists():
        return seconds
    log = unit.log.read_text(encoding="utf-8", errors="replace")
    raise CompileError(
        kernel=str(unit.spec),
        command=compiler.command(unit),
        source=unit.source,
        error=first_error(log),
        log=log,
    )


def _cpu_seconds() -> float:
    """Of this process, in which NVRTC works, and of the children that it waited for, as nvcc."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)
