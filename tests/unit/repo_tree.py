"""The files of this repository, for the tests that read it as text."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Only for a copy without a git history: elsewhere .gitignore says what is not ours.
_NOT_OURS = {".git", ".venv", ".whl", "__pycache__", "build", "dist", "gpu-out"}


def _is_foreign(part: str) -> bool:
    return part in _NOT_OURS or part.endswith("_cache")


@cache
def repo_files() -> tuple[Path, ...]:
    """Every file that is tracked or about to be, relative to the root, sorted."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        out = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        names = {Path(name) for name in out.split("\0") if name}
    else:
        names = {p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file()}
        names = {p for p in names if not any(map(_is_foreign, p.parts))}
    return tuple(sorted(p for p in names if (ROOT / p).is_file()))


def python_files(*folders: str) -> list[Path]:
    """The Python files under the given top folders (all, if none is given)."""
    return [p for p in repo_files() if p.suffix == ".py" and (not folders or p.parts[0] in folders)]
