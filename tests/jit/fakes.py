"""A kernel to compile, and a compiler that only pretends, for tests without any."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnhub.jit.build import Cubin, compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Done, Unit
from attnhub.jit.params import ParamLayout
from attnhub.jit.spec import KernelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The context of the demo kernel."""

    dtype: str = "float"
    unroll: int = 1
    factor: float = 2.0
    uses_bf16: bool = False


def spec(
    factor: float = 2.0,
    *,
    package: str = "tests.jit.demo",
    arch: str = "sm_80",
    flags: tuple[str, ...] = (),
    name: str = "scale",
) -> KernelSpec:
    """The demo kernel; each factor is a kernel of its own."""
    return KernelSpec(
        name=name,
        template=f"{package}:templates/scale.cu.jinja",
        context=Scale(factor=factor),
        entry="scale",
        params=ParamLayout({"data": "float*", "size": "int"}),
        arch=arch,
        include_dirs=(f"{package}:include",),
        flags=flags,
    )


@dataclass(frozen=True, kw_only=True)
class FakeCompiler:
    """Writes each kernel it is asked for into a journal. ``refuses`` lists factors that fail."""

    journal: Path
    tag: str = "fake-1"
    name: str = "fake"
    seconds: float = 0.0
    refuses: tuple[str, ...] = ()
    dies: bool = False

    def command(self, unit: Unit) -> str:
        return f"fake {unit.source}"

    def compile(self, units: Sequence[Unit], *, jobs: int, done: Done) -> None:
        for unit in units:
            with self.journal.open("a", encoding="utf-8") as journal:
                journal.write(f"{unit.spec.context.factor} jobs={jobs}\n")
            time.sleep(self.seconds)
            source = unit.source.read_text(encoding="utf-8")
            if any(f"{factor}f)" in source for factor in self.refuses):
                unit.log.write_text(f'warning: old\n{unit.source}(9): error: no "demo"\nerror: 2\n')
                continue
            if self.dies:
                unit.cubin.write_bytes(b"half of")
                os.kill(os.getpid(), signal.SIGKILL)
            unit.log.write_text("ptxas info : Used 8 registers\n")
            unit.cubin.write_bytes(image(source))
            done(unit)

    def built(self) -> list[str]:
        """The factors that were compiled, in order."""
        if not self.journal.exists():
            return []
        return [line.split()[0] for line in self.journal.read_text().splitlines()]


class OnDevice:
    """As a tensor on a GPU: each way to make a number of it would wait."""

    def _wait(self) -> Any:
        raise AssertionError("it waited for the device")

    __bool__ = __index__ = __int__ = __float__ = __repr__ = _wait


def image(source: str) -> bytes:
    """What the fake makes of a source."""
    return b"cubin of " + hashlib.sha256(source.encode()).digest() * 100


def in_process(folder: str, factors: Sequence[float], **compiler: object) -> list[Cubin]:
    """What tests run in other processes: compile with the fake, its journal beside the cache."""
    fake = FakeCompiler(journal=Path(f"{folder}.journal"), **compiler)  # type: ignore[arg-type]
    return compile_kernels(map(spec, factors), cache=Cache(folder), compiler=fake)
