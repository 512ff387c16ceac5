"""Fake installed packages: a folder that, on the path, is as good as a pip install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.repo_tree import ROOT

MANIFEST = """
from attnhub.plugin import AnyValue, Backend, Capability, Estimate, hookimpl

@hookimpl
def attnhub_backends():
    return [Backend(
        name="{name}",
        op="norm.rmsnorm",
        capability=Capability(accepts={{"dtype": AnyValue(), "hidden": AnyValue()}}),
        cost=lambda problem: Estimate(us=0.1, source="model"),
        load="{package}.kernels:planner",
    )]
"""


def install(folder: Path, name: str, manifest: str = MANIFEST, **modules: str) -> None:
    """Install the plugin ``name`` as the package ``fake_<name>`` with these modules."""
    package = f"fake_{name}"
    (folder / package).mkdir(parents=True)
    modules = {"__init__": "", "manifest": manifest, **modules}
    for module, source in modules.items():
        text = source.format(name=name, package=package) if source is MANIFEST else source
        (folder / package / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[attnhub]\n{name} = {package}.manifest\n")


def python(code: str, folder: Path, **env: str) -> str:
    """Run ``code`` in a fresh interpreter with the folder first on the path; its stdout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ATTNHUB_")}
    path = os.pathsep.join([str(folder), str(ROOT)])
    script = folder / "main.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**kept, "PYTHONPATH": path, **env},
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
