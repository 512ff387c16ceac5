"""Attention that calls every hook where variant.cuh says gives what the reference gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.attn.reference import Request, attend
from attnhub.testing.compare import assert_close
from attnhub.variant import ScalarParam, TensorParam, Variant
from tests.variant.hooks import attention

#: (qo_len, kv_len): prefill, an append, decode, nothing to see, and more queries than keys.
LENGTHS = [(5, 5), (3, 9), (1, 6), (2, 0), (7, 4)]
QO_HEADS, KV_HEADS, DIM = 4, 2, 8
LONGEST = 9

_bias = ScalarParam("bias")
_table = TensorParam("table", 2)
_document = TensorParam("document", 2, "int32")
_gate = TensorParam("gate", 2, "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A variant, and values for its run-time parameters."""

    name: str
    variant: Variant
    params: dict[str, Any] = field(default_factory=dict)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _same_document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    # More queries than keys begin before the first key.
    return _document[b, q_idx.clamp(min=0)] == _document[b, kv_idx]


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2]] * len(LENGTHS), dtype=torch.int32)

EXAMPLES = [
    Example(name="plain", variant=Variant()),
    Example(
        name="flash_sigmoid",  # arXiv:2409.04431
        variant=Variant(
            softmax=False,
            score_mod=lambda score, b, h, q_idx, kv_idx: torch.sigmoid(score + _bias),
        ),
        params={"bias": -1.5},
    ),
    Example(
        name="documents",
        variant=Variant(mask_mod=_same_document),
        params={"document": DOCUMENTS},
    ),
    Example(
        name="soft_cap_and_alibi",
        variant=Variant(soft_cap=1.5, alibi=True, scale=0.9),
        params={"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    ),
    Example(
        name="learned_bias",  # by head and distance
        variant=Variant(
            score_mod=lambda score, b, h, q_idx, kv_idx: score + _table[h, kv_idx - q_idx + LONGEST]
        ),
        params={"table": random(QO_HEADS, 2 * LONGEST + 1, seed=1)},
    ),
    Example(
        name="sinks_and_mask",
        variant=Variant(sinks=True, mask_mod=lambda b, h, q_idx, kv_idx: (kv_idx + b) % 3 != 0),
        params={"sinks": torch.tensor([-2.0, 0.0, 1.0, 3.0])},
    ),
    Example(
        name="elements",  # the sum: rows that see nothing are 0 all the same
        variant=Variant(
            query_mod=lambda x, b, h, q_idx, d: x * (1.0 + 0.1 * h) - 0.05 * q_idx * d,
            key_mod=lambda x, b, h_kv, kv_idx, d: torch.where(
                (kv_idx + h_kv + b) % 2 == d % 2, x, -x
            ),
            output_mod=lambda x, b, h, q_idx, d: 1.0 + x * _gate[h, d],
        ),
        params={"gate": random(QO_HEADS, DIM, seed=2).bfloat16()},
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_equals_the_reference(example: Example, device: torch.device) -> None:
    indptrs = [[0, *accumulate(lengths)] for lengths in zip(*LENGTHS, strict=True)]
    q, k, v = (
        random(indptrs[which][-1], heads, DIM, seed=seed)
        for seed, (which, heads) in enumerate([(0, QO_HEADS), (1, KV_HEADS), (1, KV_HEADS)])
    )
    params = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in example.params.items()
    }
    out, lse = attention(
        example.variant,
        tuple(x.to(device) for x in (q, k, v)),
        tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in indptrs),
        params,
    )
    for index in range(len(LENGTHS)):
        rows, keys = (slice(*indptr[index : index + 2]) for indptr in indptrs)
        wanted, wanted_lse = attend(
            q[rows].double(),
            k[keys].double(),
            v[keys].double(),
            example.variant,
            Request(index=index, params=example.params),
        )
        assert_close(out[rows].cpu(), wanted, name=f"output of request {index}")
        assert_close(lse[rows].cpu(), wanted_lse, kind="lse", name=f"LSE of request {index}")
