"""Fresh interpreters, for what only the first use of a process costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attnhub
from attnhub.errors import AttnHubError


def run_python(code: str, **variables: str) -> str:
    """What a fresh interpreter prints that runs ``code`` on this attnhub.

    Raises:
        AttnHubError: the code fails; the message has what it wrote to stderr.
    """
    root = Path(attnhub.__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, **variables}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=False, text=True
    )
    if done.returncode:
        raise AttnHubError(f"a fresh process failed: {done.stderr.strip()}")
    return done.stdout
