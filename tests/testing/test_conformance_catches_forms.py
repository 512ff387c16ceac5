"""The suite catches backends that know one form of their arguments only.

Outputs that are an input, rows without or with several outer dimensions, and inputs of no elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnhub.backends.contracts import CONTRACTS
from tests.testing.liars import Liar, Register, failures

#: Op -> the arguments that are written and may be an input.
IN_PLACE = {
    "norm.rmsnorm": (2,),
    "norm.layernorm": (3,),
    "cascade.merge_state": (4, 5),
    "rope.apply_rope": (3, 4),
    "rope.apply_rope_cos_sin": (4, 5),
    "page.rope_append_paged_kv": (4,),
    "sampling.softmax": (2,),
    "sampling.top_k_renorm": (2,),
    "sampling.top_p_renorm": (2,),
    "sampling.top_k_mask_logits": (2,),
}
ANY_RANK = [op for op in CONTRACTS if op.startswith(("norm.", "activation."))]
FP8 = ["quantization.quantize_fp8", "quantization.dequantize_fp8"]
#: Op -> an argument that a call without rows leaves empty; of all others it is the first.
EMPTY = {"page.get_batch_indices_positions": 2, "page.get_seq_lens": 1}


def base(corner: str) -> bool:
    return corner == "serves-base"


def asserting(holds: Callable[..., bool], says: str) -> Callable[..., None]:
    def run(honest: Any, *args: Any) -> None:
        assert holds(*args), says
        honest(*args)

    return run


def test_the_contract_says_what_may_be_an_input() -> None:
    said = {op for op, contracts in CONTRACTS.items() for c in contracts if "itself" in c.note}
    said |= {op for op, contracts in CONTRACTS.items() for c in contracts if "themselves" in c.note}
    assert said == set(IN_PLACE)


@pytest.mark.parametrize(("op", "outputs"), IN_PLACE.items(), ids=IN_PLACE)
def test_catches_an_output_that_is_cleared_first(
    register: Register, op: str, outputs: tuple[int, ...]
) -> None:
    def cleared(honest: Any, *args: Any) -> None:
        for i in outputs:
            args[i].zero_()
        honest(*args)

    register(Liar(op, run=cleared), op=op)
    (message,) = failures(base, op).values()
    assert "raised" not in message


@pytest.mark.parametrize("op", ANY_RANK)
@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({2}, id="matrices only"),
        pytest.param({1, 2}, id="no batches of rows"),
        pytest.param({2, 3}, id="no single row"),
    ],
)
def test_catches_an_assumed_rank(register: Register, op: str, ranks: set[int]) -> None:
    register(Liar(op, run=asserting(lambda x, *_: x.ndim in ranks, "wrong rank")), op=op)
    (message,) = failures(base, op).values()
    assert "wrong rank" in message


@pytest.mark.parametrize("op", FP8)
def test_catches_an_assumed_rank_of_what_has_scales(register: Register, op: str) -> None:
    register(Liar(op, run=asserting(lambda x, *_: x.ndim == 3, "wrong rank")), op=op)
    found = failures(lambda corner: base(corner) or "scope=" in corner, op)
    scopes = {"scope=first", "scope=middle", "scope=last"}
    assert {f"serves-{corner}" for corner in {"base", *scopes}} == set(found)
    assert all("wrong rank" in message for message in found.values())


@pytest.mark.parametrize("op", CONTRACTS)
def test_catches_the_assumption_that_there_are_rows(register: Register, op: str) -> None:
    place = EMPTY.get(op, 0)
    register(Liar(op, run=asserting(lambda *args: args[place].numel() > 0, "no rows")), op=op)
    (message,) = failures(base, op).values()
    assert "no rows" in message


def test_catches_the_assumption_that_dense_attention_has_rows(register: Register) -> None:
    register(Liar(run=asserting(lambda q, *_: q.numel() > 0, "no rows")))
    assert "no rows" in failures(lambda corner: corner == "serves-kv=dense")["serves-kv=dense"]


@pytest.mark.parametrize("op", ["attention", "mla"])
@pytest.mark.parametrize(
    ("holds", "says"),
    [
        pytest.param(lambda batch: batch.extent.kv_tokens != 0, "no keys", id="keys"),
        pytest.param(lambda batch: batch.batch > 0, "nobody", id="requests"),
    ],
)
def test_catches_the_assumption_of_a_batch(
    register: Register, op: str, holds: Callable[[Any], bool], says: str
) -> None:
    def change(_: Any, batch: Any) -> Any:
        assert holds(batch), says
        return batch

    register(Liar(op, batch=change), op=op)
    (message,) = failures(base, op).values()
    assert says in message
