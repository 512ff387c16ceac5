"""Counts the instructions of a cubin, by nvdisasm from triton's wheel or a toolkit."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from attnhub.errors import AttnHubError

# As in: /*0080*/  @!P0 BRA `(.L_x_0) ;
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


class NoDisassembler(AttnHubError, RuntimeError):
    """The instructions of a cubin cannot be read on this machine; the message says why."""


def disassemble(image: bytes) -> str:
    """The code of a cubin as text.

    Raises:
        NoDisassembler: nvdisasm is not installed, or does not know the architecture.
    """
    tool = _nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [str(tool), "--print-code", "--no-dataflow", file.name]
        ran = subprocess.run(command, capture_output=True, check=False, text=True)
    if ran.returncode:
        raise NoDisassembler(f"{tool} refuses the cubin: {ran.stderr.strip() or ran.returncode}")
    return ran.stdout


def census(sass: str) -> Counter[str]:
    """How often each instruction occurs, by its name with modifiers, as ``LDG.E.128``."""
    return Counter(_INSTRUCTION.findall(sass))


def count(instructions: Mapping[str, int], name: str) -> int:
    """How often an instruction occurs that has this name and at least these modifiers.

    ``LDG`` counts every global load, and ``LDG.128`` those of 16 bytes, as ``LDG.E.128.CONSTANT``.
    """
    opcode, *modifiers = name.split(".")
    total = 0
    for full, times in instructions.items():
        its_opcode, *its_modifiers = full.split(".")
        if its_opcode == opcode and set(modifiers) <= set(its_modifiers):
            total += times
    return total


def _nvdisasm() -> Path:
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or ()) if triton else ():
        tool = Path(folder) / "backends/nvidia/bin/nvdisasm"
        if tool.is_file():
            return tool
    if on_path := shutil.which("nvdisasm"):
        return Path(on_path)
    raise NoDisassembler("no nvdisasm in triton's wheel or on the PATH; pip install triton")
