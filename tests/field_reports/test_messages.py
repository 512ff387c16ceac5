"""Messages are sentences: no template that nobody filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import torch

import attnhub
from attnhub.errors import AttnHubError
from tests.unit.repo_tree import ROOT, python_files

#: What `%` and `str.format` fill in, and an f-string has filled in already.
_PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[sdrifxeg](?!\w)|\{\w*(?:[.!:][^{}]*)?\}")
#: Calls whose text a user reads.
_SPEAKS = {"fail", "warn", "report", "note"}


def _messages() -> Iterator[tuple[str, str]]:
    """The constant text inside every raise, and inside every call that speaks to a user."""
    for file in python_files("attnhub"):
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called not in _SPEAKS:
                    continue
            elif not isinstance(node, ast.Raise):
                continue
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield f"{file}:{part.lineno}", part.value


def test_no_message_is_a_template() -> None:
    found = list(_messages())
    assert len(found) > 400, "the search finds what there is"
    wrong = [f"{where}: {text!r}" for where, text in found if _PLACEHOLDER.search(text)]
    assert wrong == []


@pytest.mark.parametrize(
    "text", ["got %d, need %s", "got {}", "got {name!r}", "{0:.3f} ms", "%5.2f"]
)
def test_the_search_knows_templates(text: str) -> None:
    assert _PLACEHOLDER.search(text)


@pytest.mark.parametrize("text", ["100 % of it", "a {1, 2} set", "50% done", "{'a': 1}"])
def test_the_search_spares_sentences(text: str) -> None:
    assert not _PLACEHOLDER.search(text)


def test_hostile_names_come_out_as_they_went_in() -> None:
    """A name that looks like a template must not be filled in either."""
    for name in ("%s%n", "{0}", "{self.__class__}"):
        with pytest.raises(AttnHubError, match=re.escape(repr(name))), attnhub.use(name):
            pass
        with pytest.raises(AttnHubError, match=re.escape(repr(name))):
            attnhub.explain(name, device="cpu")
    q = torch.zeros(1, 1, 8)
    with pytest.raises(AttnHubError, match=r"params has \{0\}; this variant takes exactly: none"):
        attnhub.attention(q, q, q, params={"{0}": 1.0})
