"""A hostile installation: broken plugins, poisoned libraries, no network, no compiler, no GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.field_reports.site_folder import MANIFEST, install, python

#: Packages that users have, that attnhub knows of, and that break in their own ways.
_POISONED = ("flash_attn", "flashinfer", "sglang", "transformers", "triton", "vllm", "xformers")

_USE_ALL = """
import json, socket, sys, warnings

opened = []

def refuse(*args, **kwargs):
    opened.append(repr(args))
    raise OSError("no network here")

class Closed(socket.socket):
    def __init__(self, *args, **kwargs):
        refuse()

socket.socket = Closed
socket.create_connection = socket.getaddrinfo = refuse
warnings.simplefilter("always")
said = []
warnings.showwarning = lambda message, category, *_, **__: said.append(
    [category.__name__, str(message)]
)

def loaded():
    return sorted(m for m in sys.modules if m.startswith("fake_"))

report = {}
import attnhub
report["after import"] = loaded()
decision = attnhub.explain("norm.rmsnorm", device="cpu", dtype="float32", hidden=2)
report["after explain"] = loaded()
report["chosen"] = [c.name for c in decision.ranked]

import torch
x = torch.tensor([[3.0, 4.0]])
report["norm"] = (attnhub.norm.rmsnorm(x, torch.ones(2), eps=0.0) * 12.5**0.5).tolist()
q = torch.ones(1, 1, 8)
report["attention"] = attnhub.attention(q, q, 2 * q).sum().item()
report["token"] = attnhub.sampling.sample_from_probs(torch.tensor([[0.0, 1.0]])).tolist()
after = attnhub.explain("norm.rmsnorm", device="cpu", dtype="float32", hidden=2)
report["after a call"] = {
    r.name: str(r.reasons[0]) for r in after.rejected if r.reasons
}
from attnhub.cli import diagnosis
report["doctor"] = {p["what"]: p["why"] for p in diagnosis.diagnose()["problems"]}
report["said"] = said
report["sockets"] = opened
report["libraries"] = sorted(m for m in sys.modules if m in %r)
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process saw that imports attnhub, asks, computes and diagnoses."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "poisoned", manifest="import libcudart_of_another_decade")
    install(folder, "exits", manifest="raise SystemExit('no licence')")
    install(folder, "stale", kernels="import fake_stale._extension", manifest=MANIFEST)
    (folder / "fake_stale" / "_extension.so").write_bytes(b"\x7fELF of another torch")
    install(folder, "renamed", kernels="planner_v2 = None")
    install(folder, "denied", manifest="raise AssertionError('a denied plugin was opened')")
    for name in _POISONED:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    allowed = "exits,poisoned,renamed,stale"
    out = python(
        _USE_ALL % (_POISONED,), folder, CUDA_VISIBLE_DEVICES="", PATH="", ATTNHUB_PLUGINS=allowed
    )
    return json.loads(out.splitlines()[-1])


def test_importing_attnhub_opens_no_plugin(report: Any) -> None:
    assert report["after import"] == []


def test_explaining_opens_manifests_and_no_kernels(report: Any) -> None:
    """The two that break are gone; the others have been read, but nothing of them was loaded."""
    assert report["after explain"] == [
        "fake_exits",
        "fake_poisoned",
        "fake_renamed",
        "fake_renamed.manifest",
        "fake_stale",
        "fake_stale.manifest",
    ]
    assert report["chosen"] == ["renamed", "stale", "reference"]


def test_broken_plugins_and_libraries_change_no_result(report: Any) -> None:
    assert report["norm"] == [pytest.approx([3.0, 4.0])]
    assert report["attention"] == 16.0
    assert report["token"] == [1]
    assert report["libraries"] == []


def test_no_socket_is_opened(report: Any) -> None:
    """Importing, choosing, computing and diagnosing are all done offline."""
    assert report["sockets"] == []


def test_each_fault_is_reported_once_and_loudly(report: Any) -> None:
    said = sorted(text for category, text in report["said"] if category == "PluginWarning")
    assert len(said) == 4
    for text, (name, words) in zip(said, [
        ("exits", "SystemExit: no licence"),
        ("poisoned", "No module named 'libcudart_of_another_decade'"),
        ("renamed", "has no attribute 'planner'"),
        ("stale", "cannot load 'fake_stale.kernels:planner'"),
    ], strict=True):  # fmt: skip
        assert text.startswith(f"plugin {name!r}: ")
        assert words in text


def test_a_kernel_that_does_not_load_is_a_reason(report: Any) -> None:
    """A renamed entry symbol, and an extension built for another torch."""
    reasons = report["after a call"]
    assert "has no attribute 'planner'" in reasons["renamed"]
    assert "_extension" in reasons["stale"]


def test_doctor_names_all_of_them(report: Any) -> None:
    assert {"plugin exits", "plugin poisoned", "backend renamed of norm.rmsnorm",
            "backend stale of norm.rmsnorm"} <= report["doctor"].keys()  # fmt: skip
    assert not [what for what in report["doctor"] if "denied" in what]
