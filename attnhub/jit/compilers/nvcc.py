"""nvcc driven by ninja: for machines with a toolkit, and for many kernels at once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnhub.jit.compilers import Done, Finding, Unit, locate

# A cubin gets its name only when it is complete, and all that nvcc says goes to the log.
_RULE = """\
rule cubin
  command = $nvcc > $log 2>&1 && mv $out.part $out
  description = $out
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """One nvcc and the ninja that runs it."""

    nvcc: Path
    ninja: Path
    tag: str
    name: str = "nvcc"

    def command(self, unit: Unit) -> str:
        return self._command(unit, unit.cubin)

    def compile(self, units: Sequence[Unit], *, jobs: int, done: Done) -> None:
        with tempfile.TemporaryDirectory(prefix="attnhub-ninja-") as folder:
            rules = [_RULE, *(self._rule(unit) for unit in units)]
            (Path(folder) / "build.ninja").write_text("\n".join(rules), encoding="utf-8")
            said = []
            for line in self._run(Path(folder), jobs):
                said.append(line)
                units = _report(units, done)
        for unit in _report(units, done):
            if not unit.log.exists():
                unit.log.write_text("".join(said), encoding="utf-8")

    def _command(self, unit: Unit, out: Path) -> str:
        words = [self.nvcc, "--cubin", *unit.options, unit.source, "--output-file", out]
        return shlex.join(map(str, words))

    def _rule(self, unit: Unit) -> str:
        command = self._command(unit, unit.cubin.with_name("kernel.cubin.part"))
        out, source = _path(unit.cubin), _path(unit.source)
        return (
            f"build {out}: cubin {source}\n"
            f"  nvcc = {command.replace('$', '$$')}\n"
            f"  log = {shlex.quote(str(unit.log)).replace('$', '$$')}\n"
        )

    def _run(self, folder: Path, jobs: int) -> Iterator[str]:
        """Ninja's lines: it prints one as each kernel ends, and goes on after a failure."""
        command = [str(self.ninja), "-C", str(folder), "-k", "0", "-j", str(jobs)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield from process.stdout or ()
            finally:
                # Ninja takes its compilers along; after a normal end there is nothing to stop.
                process.terminate()


def _report(units: Sequence[Unit], done: Done) -> list[Unit]:
    """Call ``done`` with those that are complete now; returns the rest."""
    complete = [unit for unit in units if unit.cubin.exists()]
    for unit in complete:
        done(unit)
    return [unit for unit in units if unit not in complete]


def _path(path: Path) -> str:
    """A path as ninja reads it in a build line."""
    text = str(path)
    for letter in "$ :":
        text = text.replace(letter, f"${letter}")
    return text


def find(cuda_home: str = "") -> Finding:
    """Look for nvcc, and for the ninja and the host compiler that it needs."""
    found = next(_candidates(cuda_home), None)
    if found is None:
        return Finding(name="nvcc", why="no nvcc in CUDA_HOME, PATH, pip's packages or a toolkit")
    how, nvcc = found
    ninja = _ninja()
    why = ""
    if ninja is None:
        why = f"{nvcc} is there, but ninja is not; pip install ninja"
    elif not (shutil.which("gcc") or shutil.which("g++")):
        why = f"{nvcc} is there, but the gcc that it needs is not"
    text = _version(nvcc)
    if not why and not text:
        why = f"{nvcc} --version fails"
    if why or ninja is None:
        return Finding(name="nvcc", path=str(nvcc), how=how, why=why)
    return Finding(
        name="nvcc",
        compiler=Nvcc(nvcc=nvcc, ninja=ninja, tag=f"nvcc-{_build(nvcc, text)}"),
        version=text.partition("release ")[2].partition("\n")[0],
        path=str(nvcc),
        headers=str(locate.cuda_headers(nvcc.resolve().parents[1]) or ""),
        how=how,
    )


def _candidates(cuda_home: str) -> Iterator[tuple[str, Path]]:
    if not cuda_home and (on_path := shutil.which("nvcc")):
        yield "PATH", Path(on_path)
    for how, root in locate.roots(cuda_home):
        nvcc = root / "bin/nvcc"
        if nvcc.is_file() and os.access(nvcc, os.X_OK):
            yield how, nvcc


def _ninja() -> Path | None:
    """The ninja on the PATH, beside this Python, or in pip's package."""
    if found := shutil.which("ninja"):
        return Path(found)
    places = [Path(sys.executable).parent]
    places += [folder / "data/bin" for folder in locate.package_folders("ninja")]
    return next((p / "ninja" for p in places if (p / "ninja").is_file()), None)


def _version(nvcc: Path) -> str:
    try:
        ran = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, check=False, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout if ran.returncode == 0 else ""


def _build(nvcc: Path, version: str) -> str:
    """The build of every part: pip may have mixed wheels of several releases."""
    root = nvcc.resolve().parents[1]
    parts = (root / "nvvm/bin/cicc", root / "bin/ptxas")
    headers = locate.headers_digest(locate.cuda_headers(root))
    return locate.build_of((p for p in parts if p.is_file()), text=f"{version}{headers}")
