"""Gates of kernels in Triton, compiled here for GPUs that need not be here."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnhub.errors import AttnHubError
from attnhub.testing.gates import log as logs
from attnhub.testing.gates import sass
from attnhub.testing.gates.building import Build
from attnhub.testing.gates.launches import INDEX, Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """A kernel as one workload of an op needed it first."""

    op: str
    workload: str
    name: str
    arch: str

    def __str__(self) -> str:
        return f"{self.name} of {self.op} for {self.arch}, as {self.workload} launches it"


def triton_builds(manifest: str, backend: str, *, sm: int, ops: Sequence[str]) -> list[Build]:
    """Every kernel that the workloads of these ops launch on a GPU of ``sm``, compiled.

    Args:
        manifest: the module that offers the backends.
        backend: their name.
        sm: the compute capability, as 90.
        ops: of those that the manifest offers.

    Raises:
        AttnHubError: a workload fails, or launches nothing of Triton.

    Example:
        >>> for build in triton_builds("mine.manifest", "mine", sm=90, ops=["norm.rmsnorm"]):
        ...     print(build)
    """
    with tempfile.TemporaryDirectory() as folder:
        found = _launches(folder, manifest, backend, str(sm), *ops)
        failed = [f"{x.op}, workload {x.workload}: {x.error}" for x in found if x.error]
        idle = sorted({*ops} - {x.op for x in found})
        failed += [f"{op}: no workload launches a kernel" for op in idle]
        if failed:
            raise AttnHubError("\n  ".join([f"{backend} on sm_{sm}:", *failed]))
        return [_build(x, Path(folder), f"sm_{sm}") for x in found]


def _launches(folder: str, *arguments: str) -> list[Launch]:
    manifest, backend, sm, *ops = arguments
    # Without the interpreter, and without what others compiled.
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(Path(folder, "cache"))
    module = "attnhub.testing.gates.launches"
    command = [sys.executable, "-m", module, manifest, backend, sm, folder, *ops]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise AttnHubError(f"{' '.join(command)} failed:\n{ran.stderr.strip()}")
    index = Path(folder, INDEX).read_text(encoding="utf-8")
    return [Launch(**entry) for entry in json.loads(index)]


def _build(launch: Launch, folder: Path, arch: str) -> Build:
    image = folder.joinpath(f"{launch.file}.cubin").read_bytes()
    log = folder.joinpath(f"{launch.file}.log").read_text(encoding="utf-8")
    instructions, why = None, ""
    try:
        instructions = sass.census(sass.disassemble(image))
    except sass.NoDisassembler as error:
        why = str(error)
    return Build(
        **dataclasses.asdict(logs.usage(log)),
        spec=TritonKernel(op=launch.op, workload=launch.workload, name=launch.kernel, arch=arch),
        compiler="triton",
        notices=logs.notices(log),
        instructions=instructions,
        no_instructions=why,
        cpu_seconds=launch.cpu_seconds,
        image=image,
        log=log,
    )
