"""The op that docs/write_a_plugin.md makes, installed from the page's own blocks of code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/write_a_plugin.md").read_text("utf-8")
SECTION = PAGE.partition("## An op of your own\n")[2].partition("\n## ")[0]
FILES = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)

INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: my-ops\nVersion: 1.0\n",
    "entry_points.txt": "[attnhub]\nmy_ops = my_ops.manifest\n",
}
EXPLAIN = """
import sys
import attnhub
print(attnhub.explain("my_ops.squared_relu", device="cpu", dtype=sys.argv[1], hidden=64))
print([name for name in sys.modules if name.startswith("my_ops")])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    inside = [(f"my_ops-1.0.dist-info/{name}", text) for name, text in INFO.items()]
    for name, text in (*FILES, *inside):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def python(site: Path, *words: str) -> str:
    path = os.pathsep.join([str(site), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=site,
        env={**os.environ, "PYTHONPATH": path, "ATTNHUB_PLUGINS": "my_ops"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_conforms(site: Path) -> None:
    told = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests").splitlines()[-1]
    passed = re.match(r"(\d+) passed in", told)
    assert passed is not None, told
    assert int(passed[1]) >= 5  # three sizes served, two dtypes refused


@pytest.mark.parametrize(
    ("dtype", "chosen"),
    [
        pytest.param("float32", "quick", id="what quick declares"),
        pytest.param("bfloat16", "reference", id="what it does not"),
    ],
)
def test_it_is_explained_without_its_kernels(site: Path, dtype: str, chosen: str) -> None:
    *table, modules = python(site, "-c", EXPLAIN, dtype).splitlines()
    assert table[0].startswith(f"my_ops.squared_relu on cpu: {chosen}, ")
    assert any("tokens unknown, assumed 4096" in line for line in table)
    assert modules == "['my_ops', 'my_ops.manifest', 'my_ops.problem']"
