from __future__ import annotations

from typing import Any

import pytest

from attnhub import BlockSparse, DTypes, Paged, Ragged, Rope, VariableBlocks, Variant
from attnhub.attn.problem import AttentionProblem
from attnhub.cli.facts import parse_facts, parse_variant
from attnhub.core.device import named
from attnhub.errors import AttnHubError
from attnhub.norm.problem import LayerNormProblem
from attnhub.rope.problem import ApplyRopeProblem


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param("num_qo_heads=64", 64, id="integer"),
        pytest.param("batch=0", 0, id="a size of zero"),
        pytest.param("head_dim=192x128", (192, 128), id="two dims"),
        pytest.param("block=16x16", (16, 16), id="tuple field"),
        pytest.param("graph=true", True, id="bool"),
        pytest.param("deterministic=False", False, id="bool as Python writes it"),
        pytest.param("page_size=none", None, id="absent"),
        pytest.param("mask=none", "none", id="a field of texts keeps the word"),
        pytest.param("q_dtype=float8_e4m3fn", "float8_e4m3fn", id="text"),
        pytest.param("kv=dense", "dense", id="layout without a size"),
        pytest.param("kv=paged:16", Paged(16), id="pages"),
        pytest.param("kv=paged:16:HND", Paged(16, "HND"), id="pages, heads first"),
        pytest.param("kv=ragged:HND", Ragged("HND"), id="ragged, heads first"),
        pytest.param("kv=block_sparse:16x32", BlockSparse(16, 32), id="blocks"),
        pytest.param("kv=variable_blocks", VariableBlocks(), id="variable blocks"),
        pytest.param(
            "dtype=float8_e4m3fn,float8_e5m2,bfloat16",
            DTypes("float8_e4m3fn", "float8_e5m2", "bfloat16"),
            id="three dtypes",
        ),
    ],
)
def test_words_become_facts(word: str, expected: Any) -> None:
    (value,) = parse_facts([word], AttentionProblem).values()
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param("rope=true", Rope(), id="plain rotation"),
        pytest.param("rope=500000", Rope(theta=5e5), id="rotation with theta"),
        pytest.param("rope=none", None, id="the op's default"),
        pytest.param("head_dim=64", 64, id="a field of its own here"),
    ],
)
def test_words_become_facts_of_a_rotation(word: str, expected: Any) -> None:
    assert list(parse_facts([word], ApplyRopeProblem).values()) == [expected]


def test_facts_make_the_problem_that_python_makes() -> None:
    words = "num_qo_heads=64 num_kv_heads=8 head_dim=128 dtype=bfloat16 kv=paged:16 batch=3"
    facts = parse_facts(words.split(), AttentionProblem)
    variant = parse_variant("causal,window=1024:0")
    assert AttentionProblem.of("h100", **facts, variant=variant) == AttentionProblem.of(
        named("h100"),
        num_qo_heads=64,
        num_kv_heads=8,
        head_dim=128,
        dtype="bfloat16",
        kv=Paged(page_size=16),
        variant=Variant(causal=True, window=(1024, 0)),
        batch=3,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["head_dim"], "fact 'head_dim': write name=value", id="no value"),
        pytest.param(["head_dim="], "fact 'head_dim=': write name=value", id="empty value"),
        pytest.param(["batch=1", "batch=2"], "fact 'batch' is given twice", id="twice"),
        pytest.param(["batch=-1"], "batch=-1: needs an integer >= 0", id="negative size"),
        pytest.param(["batch=many"], "batch=many: needs an integer >= 0", id="size in words"),
        pytest.param(["num_qo_heads=8.5"], "needs a value such as 1, 4, 8", id="fraction"),
        pytest.param(
            ["num_qo_heads=true"], "needs a value such as 1, 4, 8", id="bool for a number"
        ),
        pytest.param(["graph=1"], "needs a value such as false, true", id="number for a bool"),
        pytest.param(["q_dtype=bf16"], "unknown value of 'q_dtype': 'bf16'", id="no such dtype"),
        pytest.param(["dtype=float16,float16"], "or three: of q, of kv", id="two dtypes"),
        pytest.param(["kv=paged"], "kv=paged: the size is missing", id="pages without size"),
        pytest.param(["kv=paged:16:NDH"], "kv=paged:16:NDH: write", id="no such order"),
        pytest.param(["kv=block_sparse:16"], "kv=block_sparse:16: write", id="half a block"),
        pytest.param(["kv=paged:0"], "page_size=0: needs an integer >= 1", id="empty page"),
        pytest.param(["head_dim=1.5"], "head_dim=1.5: needs an integer, or two", id="half a dim"),
        pytest.param(["head_dim=1x2x3"], "needs an integer, or two as in 192x128", id="3 dims"),
        pytest.param(["device=h100"], "device=h100: use --device", id="the device is an option"),
        pytest.param(["backend=flex"], "backend=flex: use --backend", id="so is the backend"),
        pytest.param(["op=attention"], "op=attention: write the op first", id="the op comes first"),
        pytest.param(["features=causal"], "use --variant", id="features follow from the variant"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(AttnHubError) as error:
        parse_facts(words, AttentionProblem)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["abc", "1x2", "0"])
def test_a_rotation_without_a_theta_is_refused(text: str) -> None:
    with pytest.raises(AttnHubError, match=r"theta=.*finite number > 0"):
        parse_facts([f"rope={text}"], ApplyRopeProblem)


def test_an_op_without_a_variant_has_facts_of_its_own() -> None:
    words = ["dtype=float16", "hidden=4096", "bias=true", "tokens=7"]
    assert parse_facts(words, LayerNormProblem) == {
        "dtype": "float16",
        "hidden": 4096,
        "bias": True,
        "tokens": 7,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Variant(), id="plain"),
        pytest.param("causal", Variant(causal=True), id="flag"),
        pytest.param("causal, soft_cap=30", Variant(causal=True, soft_cap=30.0), id="blanks"),
        pytest.param("window=1024:0", Variant(window=(1024, 0)), id="window"),
        pytest.param("window=-1:5", Variant(window=(-1, 5)), id="open side"),
        pytest.param("softmax=false,scale=0.5", Variant(softmax=False, scale=0.5), id="off"),
        pytest.param("rope", Variant(rope=Rope()), id="plain rotation"),
        pytest.param("rope=500000", Variant(rope=Rope(theta=5e5)), id="rotation with theta"),
        pytest.param("alibi,sinks", Variant(alibi=True, sinks=True), id="two flags"),
    ],
)
def test_text_becomes_a_variant(text: str, expected: Variant) -> None:
    assert parse_variant(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("casual", "did you mean 'causal'", id="typo"),
        pytest.param("causal,causal", "'causal' is given twice", id="twice"),
        pytest.param("window=1024", "window=1024: write left:right", id="one side"),
        pytest.param("window", "write left:right", id="no sides"),
        pytest.param("window=-2:0", "write left:right", id="below open"),
        pytest.param("soft_cap=high", "soft_cap='high'", id="no number"),
        pytest.param("score_mod=f", "is a function", id="a mod"),
        pytest.param("causal=1", "give True or False", id="number for a flag"),
        pytest.param("rope=abc", "theta='abc' is of type str", id="no theta"),
        pytest.param("rope=0", "theta=0 ", id="a theta of zero"),
    ],
)
def test_wrong_variants_are_refused(text: str, message: str) -> None:
    with pytest.raises(AttnHubError) as error:
        parse_variant(text)
    assert message in str(error.value)
