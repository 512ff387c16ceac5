"""What a user may say of a call: every fact is checked, so that explain() speaks of real calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import attnhub
from attnhub.core import discovery
from attnhub.core.problem import fact_fields
from attnhub.errors import InvalidArgument, UnknownName
from attnhub.plugin import Problem, fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Problem):
    """A fact of each kind, and a rule over two of them."""

    op = "fake.every"
    sizes = ("batch", "tokens")

    dtype: str = fact(domain=("float32", "bfloat16"))
    heads: int = fact(domain=(1, 8))
    drafts: int = fact(domain=(0, 2), default=0, minimum=0)
    page: int | None = fact(domain=(1, 16), default=None)
    block: tuple[int, int] | None = fact(domain=((1, 1), (16, 16)), default=None)
    features: frozenset[str] = fact(
        domain=(frozenset({"cap"}), frozenset({"rope"})), default=frozenset()
    )
    mode: str = fact(domain=("fast",), default="none")
    graph: bool = fact(domain=(True, False), default=False)

    def validate(self) -> None:
        if self.page is not None and self.block is not None:
            raise InvalidArgument("page and block: give one")


SOUND: dict[str, Any] = {"dtype": "float32", "heads": 4}


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        pytest.param("dtype", torch.bfloat16, "bfloat16", id="a dtype for its name"),
        pytest.param("heads", 7, 7, id="a size outside the test values"),
        pytest.param("drafts", 0, 0, id="none, where the minimum says so"),
        pytest.param("page", None, None, id="the default"),
        pytest.param("block", (3, 5), (3, 5), id="a pair"),
        pytest.param("features", {"cap", "rope"}, frozenset({"cap", "rope"}), id="a set"),
        pytest.param("features", ["cap"], frozenset({"cap"}), id="a list, as from JSON"),
        pytest.param("features", frozenset(), frozenset(), id="no feature"),
        pytest.param("mode", "none", "none", id="a default that the domain lacks"),
        pytest.param("mode", "fast", "fast", id="a text"),
        pytest.param("graph", True, True, id="a flag"),
    ],
)
def test_what_is_taken(name: str, given: Any, kept: Any) -> None:
    value = getattr(Every.of("cpu", **{**SOUND, name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("name", "given", "accepted"),
    [
        pytest.param("dtype", "bf16", "one of 'bfloat16', 'float32'", id="a dtype by nickname"),
        pytest.param("dtype", torch.int8, "one of 'bfloat16', 'float32'", id="another dtype"),
        pytest.param("dtype", None, "one of 'bfloat16', 'float32'", id="no dtype"),
        pytest.param("heads", 0, "an integer >= 1", id="none of something"),
        pytest.param("heads", -4, "an integer >= 1", id="fewer than none"),
        pytest.param("heads", 4.0, "an integer >= 1", id="a float"),
        pytest.param("heads", True, "an integer >= 1", id="a flag for a number"),
        pytest.param("heads", "4", "an integer >= 1", id="a text for a number"),
        pytest.param("heads", None, "an integer >= 1", id="None without that default"),
        pytest.param("drafts", -1, "an integer >= 0", id="below a minimum of 0"),
        pytest.param("page", 0, "an integer >= 1", id="a page of nothing"),
        pytest.param("block", (16,), "2 integers >= 1", id="half a pair"),
        pytest.param("block", (16, 0), "2 integers >= 1", id="a pair with nothing"),
        pytest.param("features", {"softcap"}, "a set of 'cap', 'rope'", id="a feature misspelt"),
        pytest.param("features", "cap", "a set of 'cap', 'rope'", id="a text for a set"),
        pytest.param("features", 5, "a set of 'cap', 'rope'", id="a number for a set"),
        pytest.param("mode", "fats", "one of 'fast', 'none'", id="a text misspelt"),
        pytest.param("graph", 1, "True or False", id="a number for a flag"),
        pytest.param("graph", "yes", "True or False", id="a text for a flag"),
        pytest.param("batch", -1, "an integer >= 0", id="a negative size"),
        pytest.param("tokens", 1.5, "an integer >= 0", id="half a token"),
    ],
)
def test_what_is_refused_says_what_is_taken(name: str, given: Any, accepted: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Every.of("cpu", **{**SOUND, name: given})
    assert f"{name}={given!r}" in str(caught.value)
    assert accepted in str(caught.value)


def test_facts_that_no_call_has_together_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="page and block: give one"):
        Every.of("cpu", **SOUND, page=16, block=(1, 1))


def _cases() -> list[Any]:
    """Of every op, each fact that is a number or a text, with a value that no call has."""
    registry = discovery.default()
    found = []
    for op in registry.ops:
        for name, f in fact_fields(registry.problem_class(op)).items():
            value = f.metadata["domain"][0]
            wrong = "nonsense" if isinstance(value, str) else -1
            if isinstance(value, (int, str)):
                found.append(pytest.param(op, name, wrong, id=f"{op}-{name}"))
    return found


@pytest.mark.parametrize(("op", "name", "wrong"), _cases())
def test_no_op_takes_an_impossible_number_or_text(op: str, name: str, wrong: Any) -> None:
    cls = discovery.default().problem_class(op)
    facts = {n: f.metadata["domain"][0] for n, f in fact_fields(cls).items()}
    with pytest.raises(InvalidArgument, match=name):
        cls.of("cpu", **{**facts, name: wrong})


@pytest.mark.parametrize(
    ("op", "facts", "text"),
    [
        ("rope.apply_rope_cos_sin", {"head_dim": 64, "rotary_dim": 128}, "rotary_dim=128"),
        ("rope.apply_rope_cos_sin", {"head_dim": 64, "rotary_dim": 3}, "rotary_dim=3"),
        ("sampling.sample", {"vocab": 8, "joint": True, "top_p": True}, "joint=True"),
        ("sampling.top_k", {"vocab": 8, "k": 9}, "k=9: give at most vocab=8"),
    ],
)
def test_rules_over_two_facts(op: str, facts: dict[str, Any], text: str) -> None:
    cls = discovery.default().problem_class(op)
    base = {n: f.metadata["domain"][0] for n, f in fact_fields(cls).items() if n not in facts}
    base |= {n: False for n, v in base.items() if isinstance(v, bool)}
    with pytest.raises(InvalidArgument, match=text):
        cls.of("cpu", **base, **facts)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("bf16", "'bfloat16'"),
        ("fp16", "'float16'"),
        ("FP32", "'float32'"),
        ("flaot32", "'float32'"),
        ("fp8", "'float8_e4m3fn' or 'float8_e5m2'"),
    ],
)
def test_a_dtype_by_another_name_is_refused_with_the_one_it_has(given: str, meant: str) -> None:
    facts = {"num_qo_heads": 4, "num_kv_heads": 4, "head_dim": 64}
    with pytest.raises(InvalidArgument, match=rf"did you mean {meant}$"):
        attnhub.explain("attention", device="cpu", dtype=given, **facts)


def test_missing_facts_are_asked_for_with_their_shorthands() -> None:
    with pytest.raises(InvalidArgument, match="also needs the facts") as caught:
        attnhub.explain("attention", device="cpu", num_qo_heads=4)
    assert all(f"{short}= stands for" in str(caught.value) for short in ATTENTION)
    with pytest.raises(UnknownName, match="did you mean 'head_dim'"):
        attnhub.explain("attention", device="cpu", head_dims=64)


ATTENTION = ("head_dim", "dtype", "kv", "variant")
