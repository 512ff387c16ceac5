"""What must not be in the repository, and what its documents promise."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repo_tree import ROOT, repo_files

MAX_BYTES = 200_000

# Joined here, so that this file does not name them itself.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("download", "pytorch", "org"),
        ("pypi", "nvidia", "com"),
        ("conda", "anaconda", "org"),
        ("npmjs", "com"),
        ("ghcr", "io"),
        ("huggingface", "co"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.>}-])/(?:root|work|home|opt/wheels)/\w")
BUILD_PRODUCTS = frozenset(
    ".a .bin .cubin .egg .fatbin .gguf .gz .o .pt .pyc .safetensors .so .whl .zip".split()
)

PROSE = [p for p in repo_files() if p.suffix == ".md"]
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def _text(file: Path) -> str | None:
    try:
        return (ROOT / file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _blocks(file: Path, info: str) -> list[re.Match[str]]:
    found = _FENCE.finditer((ROOT / file).read_text(encoding="utf-8"))
    return [block for block in found if block["info"].strip() == info]


def test_names_no_registry_and_no_machine() -> None:
    wrong = []
    for file in repo_files():
        for number, line in enumerate((_text(file) or "").splitlines(), start=1):
            named = [host for host in REGISTRY_HOSTS if host in line]
            named += MACHINE_PATH.findall(line)
            wrong += [f"{file}:{number} names {name}" for name in named]
    assert not wrong, "\n".join(wrong)


def test_holds_only_small_sources() -> None:
    wrong = []
    for file in repo_files():
        size = (ROOT / file).stat().st_size
        if file.suffix in BUILD_PRODUCTS:
            wrong.append(f"{file} is built or fetched, not written")
        elif size > MAX_BYTES:
            wrong.append(f"{file} has {size} bytes, {MAX_BYTES} allowed")
    assert not wrong, "\n".join(wrong)


def _named_paths(file: Path) -> set[str]:
    """Links, and code spans that begin with a file or folder of the root and have no blanks."""
    text = _FENCE.sub("", (ROOT / file).read_text(encoding="utf-8"))
    links = {link for link in _LINK.findall(text) if "://" not in link}
    top = {p.parts[0] for p in repo_files()}
    spans = {span.split("::")[0].rstrip("/") for span in _SPAN.findall(text)}
    plain = {span for span in spans if "/" in span and not re.search(r"[\s<{]", span)}
    return links | {span for span in plain if span.split("/")[0] in top}


def _exists(name: str, file: Path) -> bool:
    bases = (ROOT, (ROOT / file).parent)
    return any(base.joinpath(name).exists() or any(base.glob(name)) for base in bases)


@pytest.mark.parametrize("file", PROSE, ids=str)
def test_documents_name_paths_that_exist(file: Path) -> None:
    assert [name for name in sorted(_named_paths(file)) if not _exists(name, file)] == []


@pytest.mark.parametrize("file", [p for p in PROSE if _blocks(p, "python run")], ids=str)
def test_document_code_runs(file: Path, tmp_path: Path) -> None:
    """All `python run` blocks of a file, in one interpreter, at their own line numbers."""
    text = (ROOT / file).read_text(encoding="utf-8")
    source, line = "", 0
    for block in _blocks(file, "python run"):
        start = text.count("\n", 0, block.start("body"))
        source += "\n" * (start - line) + block["body"]
        line = start + block["body"].count("\n")
    script = tmp_path / f"{file.name}.py"
    script.write_text(source, encoding="utf-8")
    done = _run([sys.executable, str(script)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def _commands() -> list[str]:
    """The distinct `make` and `attnhub` commands after a `$` in `console` blocks."""
    lines = [
        line.removeprefix("$ ").partition(" #")[0].strip()
        for file in PROSE
        for block in _blocks(file, "console")
        for line in block["body"].splitlines()
        if line.startswith("$ ")
    ]
    return sorted({line for line in lines if Path(line.split()[0]).name in ("make", "attnhub")})


@pytest.mark.parametrize("command", _commands())
def test_document_commands_exist(command: str) -> None:
    tool, *words = shlex.split(command)
    if Path(tool).name == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
        assert {w for w in words if "=" not in w} <= targets
        return
    if not (ROOT / "attnhub/cli").exists():
        pytest.skip("attnhub.cli is not written yet")
    # --help wins over the command itself, but names and options before it are still checked.
    cli = [sys.executable, "-c", "from attnhub.cli import main; main()"]
    done = _run([*cli, *words, "--help"], cwd=ROOT)
    assert done.returncode == 0, done.stderr


def _run(command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, check=False, text=True, timeout=300
    )
