"""docs/kernels/writing_a_kernel.md shows the example package as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/kernels/writing_a_kernel.md"
EXAMPLE = ROOT / "examples/third_party_cuda_plugin"

_EXCERPT = re.compile(r"^<!-- from (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXCERPTS = _EXCERPT.findall(PAGE.read_text("utf-8"))


@pytest.mark.parametrize(("file", "code"), EXCERPTS, ids=lambda x: x.strip().splitlines()[0])
def test_excerpts_are_what_the_files_say(file: str, code: str) -> None:
    assert code in (ROOT / file).read_text("utf-8")


def test_every_file_of_the_package_is_shown() -> None:
    package = {p for p in (EXAMPLE / "attnhub_swiglu").rglob("*.*") if "__" not in str(p)}
    tests = set((EXAMPLE / "tests").glob("test_*.py"))
    shown = {ROOT / file for file, _ in EXCERPTS}
    assert package | tests | {EXAMPLE / "pyproject.toml"} <= shown
