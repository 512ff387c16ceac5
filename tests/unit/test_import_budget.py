"""What importing costs in kind, not in time: nothing heavy is loaded, started or initialised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.repo_tree import ROOT

_REPORT = """
import sys, threading
print(threading.active_count(), *sorted(m for m in {watched!r} if m in sys.modules))
"""
_CUDA = "import torch; print(torch.cuda.is_initialized())"


def _after(code: str, *watched: str) -> list[str]:
    """The number of threads after ``code``, then those of the ``watched`` modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_REPORT.format(watched=watched)}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import attnhub", id="the package"),
        pytest.param("import attnhub; dir(attnhub)", id="completion in a shell"),
        pytest.param("import attnhub.plugin", id="what every plugin imports"),
        pytest.param("import attnhub.variant", id="what researchers import"),
        pytest.param(
            "from attnhub.core import discovery; discovery.default()", id="every plugin discovered"
        ),
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    heavy = ("torch", "numpy", "triton", "jinja2", "rich", "typer", "attnhub.jit")
    assert _after(code, *heavy) == ["1"]


def test_attention_brings_torch_but_not_its_compiler() -> None:
    """torch._dynamo alone takes about a second to import."""
    loaded = _after(
        "import attnhub; attnhub.attention, attnhub.BatchAttention",
        *("torch", "torch._dynamo", "torch._inductor", "triton", "jinja2"),
    )
    assert loaded[1:] == ["torch"]


def test_no_cuda_context_is_made() -> None:
    code = "import attnhub; attnhub.attention, attnhub.BatchAttention, attnhub.norm"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_CUDA}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.split() == ["False"]
