"""The text of emitted variants.

``python -m tests.variant.test_cuda_emitter`` rewrites the golden files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attnhub.variant import OPS, Graph, Rope, ScalarParam, TensorParam, Variant
from attnhub.variant.cuda_emitter import _OPERATIONS, emit

ROOT = Path(__file__).parents[2]

_bias = ScalarParam("bias")
_table = TensorParam("table", 2, "bfloat16")
_document = TensorParam("document", 2, "int64")

VARIANTS = {
    "flash_sigmoid": Variant(
        softmax=False, score_mod=lambda score, b, h, q_idx, kv_idx: torch.sigmoid(score + _bias)
    ),
    "every_feature": Variant(
        soft_cap=30.0,
        alibi=True,
        sinks=True,
        score_mod=lambda score, b, h, q_idx, kv_idx: score - _table[h, (kv_idx - q_idx) // -4],
        mask_mod=lambda b, h, q_idx, kv_idx: _document[b, q_idx] == _document[b, kv_idx],
        query_mod=lambda x, b, h, q_idx, d: -x / (h + 1.5),
        key_mod=lambda x, b, h_kv, kv_idx, d: torch.where((d + h_kv) % 2 == 0, x, x * -0.1),
        output_mod=lambda x, b, h, q_idx, d: torch.nn.functional.silu(x),
    ),
}


def golden(name: str) -> Path:
    return ROOT / "tests" / "golden" / f"variant_{name}.cuh"


@pytest.mark.parametrize("name", VARIANTS)
def test_golden_source(name: str) -> None:
    assert emit(VARIANTS[name]) == golden(name).read_text(encoding="utf-8")


def test_equal_variants_have_the_same_text_in_every_process() -> None:
    variant = VARIANTS["every_feature"]
    code = (
        "import sys; from attnhub.variant import Variant; "
        "from attnhub.variant.cuda_emitter import emit; "
        "sys.stdout.write(emit(Variant.from_json(sys.stdin.read())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=variant.to_json(),
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == emit(variant)


def test_what_kernels_do_themselves_is_not_in_the_text() -> None:
    plain = emit(Variant())
    assert "struct EmittedVariant : PlainVariant {\n};" in plain
    assert emit(Variant(causal=True, window=(5, 0), scale=0.5, rope=Rope())) == plain


def test_every_operation_has_a_row() -> None:
    rows = {row if isinstance(row, str) else row[0] for row in _OPERATIONS}
    assert rows == OPS.keys() - {"const", "input"}
    for name, op in OPS.items():
        for kinds in op.signatures:
            assert (name in _OPERATIONS) != ((name, kinds[-1]) in _OPERATIONS)


def test_a_shared_value_is_computed_once() -> None:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for _ in range(40):
            score = torch.tanh(score)
            score = score * score
        return score

    assert emit(Variant(score_mod=mod)).count("tanhf") == 40


def test_a_graph_says_the_same_as_its_function() -> None:
    graph = VARIANTS["flash_sigmoid"].hook("score_mod")
    assert isinstance(graph, Graph)
    assert emit(Variant(softmax=False, score_mod=graph)) == emit(VARIANTS["flash_sigmoid"])


if __name__ == "__main__":
    for name, variant in VARIANTS.items():
        golden(name).write_text(emit(variant), encoding="utf-8")
