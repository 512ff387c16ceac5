"""What cannot be traced or declared, and the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnhub.errors import InvalidArgument, TraceError
from attnhub.variant import ScalarParam, TensorParam, trace

BIAS = TensorParam("bias", 2)
TENSOR = torch.ones(3, 4)

# Reason: (score_mod of (score, h, q_idx, kv_idx), part of the message).
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "if": (lambda s, h, q, k: s if q >= k else -1.0, r"torch.where\(...\) for if"),
    "and": (lambda s, h, q, k: torch.where(q > 0 and k > 0, s, 0), "& | ~ for and"),
    "chained": (lambda s, h, q, k: torch.where(0 <= q < 4, s, 0), "no value"),
    "python-max": (lambda s, h, q, k: max(q, k), "value of kv_idx > q_idx"),
    "math": (lambda s, h, q, k: math.exp(s), r"torch.\* for math.\*"),
    "int": (lambda s, h, q, k: int(s), r"write .int\(\)"),
    "list": (lambda s, h, q, k: [1.0, 2.0][h], "declare a TensorParam"),
    "captured-indexed": (
        lambda s, h, q, k: s + TENSOR[h, q],
        r'TensorParam\("name", ndim=2, dtype="float32"\)',
    ),
    "captured-right": (lambda s, h, q, k: s + TENSOR, r"Tensor of shape \(3, 4\)"),
    "captured-left": (lambda s, h, q, k: TENSOR * s, r"Tensor of shape \(3, 4\)"),
    "captured-function": (lambda s, h, q, k: torch.maximum(s, TENSOR), "keeps no tensors"),
    "captured-0d": (
        lambda s, h, q, k: torch.where(q > k, s, torch.tensor(0.0)),
        r"ScalarParam\(\"name\"\)",
    ),
    "captured-returned": (lambda s, h, q, k: TENSOR, r"Tensor of shape \(3, 4\)"),
    "numpy": (lambda s, h, q, k: s * np.ones(3), r"ndarray of shape \(3,\)"),
    "numpy-int": (lambda s, h, q, k: s * np.int64(3), "use a Python number"),
    "whole-parameter": (lambda s, h, q, k: s + BIAS, "used whole; index it"),
    "whole-in-function": (lambda s, h, q, k: torch.tanh(BIAS), "whole TensorParam"),
    "one-index": (lambda s, h, q, k: BIAS[h], "ndim=2 and was indexed with 1 index;"),
    "three-indices": (lambda s, h, q, k: BIAS[h, q, k], "with 3 indices"),
    "float-index": (lambda s, h, q, k: BIAS[h, s], "the float expression score"),
    "mask-index": (lambda s, h, q, k: BIAS[h, q > k], "the bool expression q_idx > kv_idx"),
    "negative-index": (lambda s, h, q, k: BIAS[h, -1], "-1 of type int; give"),
    "slice": (lambda s, h, q, k: BIAS[h, :], "slice"),
    "string": (lambda s, h, q, k: s + "1", "'1' of type str"),
    "unsupported-function": (
        lambda s, h, q, k: torch.cumsum(s, 0),
        "torch.cumsum cannot .* are abs, add, clamp",
    ),
    "unsupported-functional": (lambda s, h, q, k: F.gelu(s), "gelu cannot be used in a mod"),
    "unsupported-method": (
        lambda s, h, q, k: s.softmax(-1),
        ".softmax, which a symbol does not have; it has abs",
    ),
    "attribute": (lambda s, h, q, k: s.shape[0], "used .shape"),
    "keyword": (
        lambda s, h, q, k: torch.add(s, q, alpha=2),
        r"torch.add was called with other arguments than \(input, other\)",
    ),
    "clamp-unbounded": (lambda s, h, q, k: torch.clamp(s), "give min, max or both"),
    "complex": (lambda s, h, q, k: s.to(torch.complex64), "does not exist in a mod"),
    "float-floordiv": (
        lambda s, h, q, k: s // 2,
        r"floordiv does not take \(float, int\); it takes \(int, int\)",
    ),
    "bool-sum": (lambda s, h, q, k: (q > k) + (k > h), r"add does not take \(bool, bool\)"),
    "float-bits": (lambda s, h, q, k: s & 1, "and does not take"),
    "where-int": (lambda s, h, q, k: torch.where(q, s, 0.0), "where does not take"),
    "int-power": (lambda s, h, q, k: 2**h, "2.0 "),
    "large-int": (lambda s, h, q, k: q + 2**31, "does not fit in 32 bits"),
    "mask-as-score": (lambda s, h, q, k: q > k, "result is of kind bool and must be float"),
    "none": (lambda s, h, q, k: None, "returned None; it must return a float"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_traced_says_why(reason: str) -> None:
    mod, sentence = REFUSED[reason]
    with pytest.raises(TraceError, match=sentence) as caught:
        trace("score_mod", lambda s, b, h, q, k: mod(s, h, q, k))
    assert str(caught.value).startswith("score_mod: ")


# Reason: (hook, mod, part of the message).
MISFITS: dict[str, tuple[str, Any, str]] = {
    "int-mask": ("mask_mod", lambda b, h, q, k: q - k, "result is of kind int and must be bool"),
    "constant-int-mask": ("mask_mod", lambda b, h, q, k: 1, "return a comparison"),
    "too-few": (
        "score_mod",
        lambda s, h, q, k: s,
        r"takes \(s, h, q, k\), but it is called with the 5",
    ),
    "too-many": ("key_mod", lambda x, b, h, q, k, d: x, r"arguments \(x, b, h_kv, kv_idx, d\)"),
    "not-callable": ("score_mod", 3.0, "3.0 is not callable"),
}


@pytest.mark.parametrize("reason", MISFITS)
def test_wrong_results_and_signatures(reason: str) -> None:
    hook, mod, sentence = MISFITS[reason]
    with pytest.raises(TraceError, match=f"^{hook}: .*{sentence}"):
        trace(hook, mod)


def test_one_name_has_one_declaration() -> None:
    other = TensorParam("bias", 1)
    with pytest.raises(InvalidArgument, match=r"'bias' is declared twice .* rename one"):
        trace("score_mod", lambda s, b, h, q, k: s + BIAS[h, q] + other[h])


# Reason: (declaration, part of the message).
DECLARATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "name": (lambda: TensorParam("2x", 1), "not an ASCII identifier"),
    "ascii": (lambda: TensorParam("größe", 1), "not an ASCII identifier"),
    "rank": (lambda: TensorParam("t", 0), "is too small; give an int >= 1"),
    "bool-rank": (lambda: TensorParam("t", True), "of type bool"),
    "dtype": (lambda: TensorParam("t", 1, "float8"), "give one of the names float32"),
    "scalar-dtype": (lambda: ScalarParam("t", "float16"), "names float32, int32"),
}


@pytest.mark.parametrize("reason", DECLARATIONS)
def test_wrong_declarations(reason: str) -> None:
    declare, sentence = DECLARATIONS[reason]
    with pytest.raises(InvalidArgument, match=sentence):
        declare()
