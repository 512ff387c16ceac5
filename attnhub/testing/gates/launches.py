"""Compiles what the plans of a plugin would launch of Triton. A process of its own: see triton.py.

    python -m attnhub.testing.gates.launches MANIFEST BACKEND SM FOLDER OP...

Workloads that speed is judged by run on CPU tensors, with a driver in Triton that knows an
architecture and has no device. Types, alignment and constants are those of a launch on a GPU, so
the kernels are too, but each is compiled and not launched. FOLDER gets their cubins, ptxas's logs
and an index. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import attnhub
from attnhub.jit.triton_driver import CompilingDriver
from attnhub.plugin import isolated
from attnhub.testing.cases import workloads
from attnhub.testing.generators import seeded
from attnhub.testing.on_cpu import OnCpu

INDEX = "launches.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel, by the first launch that needed it; or, with ``error``, a workload that failed.

    ``file`` is the stem of its cubin and log.
    """

    op: str
    workload: str
    kernel: str = ""
    file: str = ""
    cpu_seconds: float = 0.0
    error: str = ""


class _Unwritten(TorchFunctionMode):
    """Memory as it comes for random numbers: to draw them takes longer than to compile."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.randn:
            kwargs.pop("generator", None)
            return torch.empty(*args, **kwargs)
        if func is torch.Tensor.to and args[0].is_floating_point():
            given = (*args[1:], *kwargs.values())
            if dtype := next((x for x in given if isinstance(x, torch.dtype)), None):
                return torch.empty_like(args[0], dtype=dtype)
        return func(*args, **kwargs)


class _Recorder:
    """What Triton does in place of a launch."""

    def __init__(self, sm: int, folder: Path) -> None:
        self._jit = importlib.import_module("triton.runtime.jit").JITFunction
        self._run, self._sm, self._folder = self._jit.run, sm, folder
        self._known: list[Any] = []
        self._op = self._workload = ""
        self.launches: list[Launch] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Compile instead of launching while it lasts."""

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            return self._compile(kernel, *args, grid=grid, warmup=True, **options)

        runtime = importlib.import_module("triton.runtime.driver").driver
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(self._jit, "run", run)
            patches.setattr(runtime, "_active", CompilingDriver(self._sm))
            yield

    def run_workloads(self, manifest: str, backend: str, op: str) -> None:
        """All of an op, by this backend; other ops it calls are left to others."""
        offered = importlib.import_module(manifest).attnhub_backends()
        with isolated() as hub:
            hub.register(OnCpu.of([x for x in offered if x.op == op]), backend)
            for workload in workloads(hub.op(op), tag="h200"):
                self._op, self._workload = op, workload.name
                try:
                    with attnhub.use(backend, op=op), _Unwritten():
                        workload.make(torch.device("cpu"), seeded(0))()
                except Exception as error:  # noqa: BLE001 - told, and the others are still tried
                    self._add(error=f"{type(error).__name__}: {error}")

    def _compile(self, *args: Any, **options: Any) -> Any:
        start, log = _cpu_seconds(), io.StringIO()
        with contextlib.redirect_stdout(log):
            made = self._run(*args, **options)
        if any(made is known for known in self._known):
            return made
        seconds = _cpu_seconds() - start
        self._known.append(made)
        file = f"{len(self._known)}-{made.metadata.name}"
        self._folder.joinpath(f"{file}.cubin").write_bytes(made.asm["cubin"])
        self._folder.joinpath(f"{file}.log").write_text(log.getvalue(), encoding="utf-8")
        self._add(kernel=made.metadata.name, file=file, cpu_seconds=seconds)
        return made

    def _add(self, **what: Any) -> None:
        self.launches.append(Launch(op=self._op, workload=self._workload, **what))


def _cpu_seconds() -> float:
    """Of this process and of ptxas, its children."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def main(manifest: str, backend: str, sm: str, folder: str, *ops: str) -> None:
    """What the command does; ``triton.py`` gives its arguments and its environment."""
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    recorder = _Recorder(int(sm), Path(folder))
    with recorder.installed():
        for op in ops:
            recorder.run_workloads(manifest, backend, op)
    index = json.dumps([dataclasses.asdict(launch) for launch in recorder.launches], indent=2)
    Path(folder, INDEX).write_text(index, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
