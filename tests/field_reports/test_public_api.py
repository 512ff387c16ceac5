"""The public surface is a file reviewed like code: a release that changes it shows in a diff.

``python -m tests.field_reports.public_api`` rewrites ``tests/golden/public_api.txt``.
"""

from __future__ import annotations

import difflib
import inspect

import attnhub
from tests.field_reports.public_api import GOLDEN, public_callables, text


def test_signatures_are_those_of_the_golden_file() -> None:
    golden, now = (t.splitlines() for t in (GOLDEN.read_text(encoding="utf-8"), text()))
    changes = list(difflib.unified_diff(golden, now, lineterm="", n=0))
    assert not changes, "python -m tests.field_reports.public_api\n" + "\n".join(changes)
    assert "0x" not in text(), "a default whose text differs from run to run"


def test_every_public_parameter_is_annotated() -> None:
    bare = [
        f"{name}: {p.name}"
        for name, function in public_callables()
        for p in inspect.signature(function).parameters.values()
        if p.annotation is p.empty and p.name not in ("self", "cls")
    ]
    assert bare == []


def test_a_dtype_is_always_the_callers_own() -> None:
    """No constructor assumes float16 for somebody who computes in bfloat16."""
    for cls in (attnhub.BatchAttention, attnhub.BatchMLA, attnhub.cascade.CascadeAttention):
        assert inspect.signature(cls).parameters["dtype"].default is inspect.Parameter.empty
