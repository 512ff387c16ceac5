"""Whether Triton can run here, asked without importing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch

from attnhub.plugin import Code, Device, Reason


def triton_runs(device: Device) -> list[Reason]:
    """Why no kernel in Triton could be launched here.

    On GPUs of other vendors than NVIDIA, Triton itself launches. Then it needs a C compiler and
    Python's headers: it builds the stub that launches a kernel with them, on every machine anew.
    """
    if importlib.util.find_spec("triton") is None:
        return [_missing("triton", "triton", "pip install triton")]
    found: list[Reason] = []
    if torch.version.cuda is not None:
        return found
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc")))):
        found.append(_missing("compiler", "a C compiler", "install gcc or clang, or set CC"))
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        hint = "install your Python's headers (python3-dev)"
        found.append(_missing("headers", "Python.h", hint))
    return found


def _missing(field: str, accepted: str, hint: str) -> Reason:
    return Reason(code=Code.PROBE, field=field, actual="missing", accepted=accepted, hint=hint)
