"""Settings for every test here, made before any test module is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    # Triton reads this once, when it is imported: its kernels then run on the CPU, in Python.
    os.environ.setdefault("TRITON_INTERPRET", "1")
