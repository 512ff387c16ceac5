"""``AttentionProblem`` and ``MLAProblem``: what no call can be, and how much work a call is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import attnhub
from attnhub import DTypes, Paged, Variant
from attnhub.attn import functional
from attnhub.attn.problem import AttentionProblem
from attnhub.core import device as devices
from attnhub.core.backend import Efficiency
from attnhub.core.problem import Work
from attnhub.errors import InvalidArgument
from attnhub.mla.problem import MLAProblem

FACTS: dict[str, Any] = {
    "num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16"
}  # fmt: skip


def work(*, causal: bool = False, window: Any = None, **facts: Any) -> Work:
    variant = Variant(causal=causal, window=window)
    return AttentionProblem.of("h100", **{**FACTS, "variant": variant, **facts}).work()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kv": "pagd"}, "kv='pagd': give one of"),
        ({"dtype": "bf16"}, "q dtype 'bf16' is not supported"),
        ({"features": {"softcap"}}, "softcap"),
        ({"num_kv_heads": 3}, "num_qo_heads=8 is no multiple of num_kv_heads=3"),
        ({"num_kv_heads": 0}, "num_kv_heads=0: give an integer >= 1"),
        ({"kv": "paged"}, "kv='paged' with page_size=None: give page_size with kv='paged'"),
        ({"kv": "ragged", "page_size": 16}, "kv='ragged' with page_size=16"),
        ({"kv": "block_sparse"}, "kv='block_sparse' with block=None"),
        ({"kv": "paged", "page_size": 16, "block": (2, 2)}, "kv='paged' with block"),
        ({"kv": "dense", "layout": "HND"}, "kv='dense' with layout='HND'"),
        ({"kv": "dense", "mask": "packed"}, "kv='dense' with mask='packed'"),
        ({"kv": "dense", "graph": True}, "kv='dense' with graph=True"),
        ({"kv": "dense", "offsets": True}, "kv='dense' with offsets=True"),
        ({"kv": "dense", "metadata": "device"}, "kv='dense' with metadata='device'"),
        ({"batch": -1}, "batch=-1: give an integer >= 0"),
        ({"mask": "bits"}, "mask='bits': give one of"),
        ({"layout": "NDH"}, "layout='NDH': give one of"),
        ({"variant": "causal"}, "variant='causal': give attnhub.Variant"),
    ],
)
def test_what_no_attention_can_be(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        attnhub.explain("attention", device="h100", **{**FACTS, **facts})


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_heads": -1}, "num_heads=-1: give an integer >= 1"),
        ({"page_size": 0}, "page_size=0: give an integer >= 1"),
        ({"features": {"window"}}, "window"),
        ({"dtype": "bf16"}, "q dtype 'bf16' is not supported"),
        ({"metadata": "gpu"}, "metadata='gpu': give one of"),
    ],
)
def test_what_no_latent_attention_can_be(facts: dict[str, Any], message: str) -> None:
    values = {"num_heads": 128, "page_size": 64, "dtype": "bfloat16", **facts}
    with pytest.raises(InvalidArgument, match=message):
        attnhub.explain("mla", device="h100", **values)


def test_decode_reads_each_key_once_whatever_the_longest_request_has() -> None:
    """63 requests of 16 keys and one of 16384: 17392 pairs, not 64 times 16384."""
    found = work(batch=64, qo_len=1, kv_len=16384, tokens=64, kv_tokens=16384)
    assert found.flops == 2 * 16384 * 8 * 128
    latent = MLAProblem.of(
        "h100", num_heads=16, page_size=64, dtype="bfloat16", batch=64, qo_len=1, kv_len=16384,
        tokens=64, kv_tokens=16384,
    ).work()  # fmt: skip
    assert latent.flops == 2 * 16384 * 16 * (576 + 512)


@pytest.mark.parametrize(
    ("sizes", "options", "pairs"),
    [
        pytest.param((1, 512, 512, 512, 512), {}, 512 * 512, id="square"),
        pytest.param((1, 512, 512, 512, 512), {"causal": True}, 512 * 256, id="causal square"),
        pytest.param((1, 1, 1, 1, 1), {"causal": True}, 1, id="one key"),
        pytest.param((1, 512, 512, 512, 512), {"window": (15, 0)}, 512 * 16, id="window"),
        pytest.param((4, 1, 64, 4, 128), {"window": (15, 0)}, 4 * 16, id="window of decode"),
        pytest.param((4, 256, 64, 256, 128), {}, 256 * 64, id="one long prompt of several"),
    ],
)
def test_pairs(sizes: tuple[int, ...], options: dict[str, Any], pairs: float) -> None:
    names = ("batch", "qo_len", "kv_len", "tokens", "kv_tokens")
    found = work(**options, **dict(zip(names, sizes, strict=True)))
    assert found.flops == 2 * pairs * 8 * 128


def test_the_output_is_written_in_its_own_dtype() -> None:
    sizes = {"batch": 1, "qo_len": 4, "kv_len": 8}
    wide = work(**sizes, dtype=DTypes("bfloat16", "bfloat16", "float32"))
    assert wide.bytes - work(**sizes).bytes == 4 * 8 * 64 * 2


def test_products_of_8_bit_operands_run_at_the_8_bit_rate() -> None:
    cost, rates = Efficiency(compute=1.0, memory=1e6), []
    for q in ("bfloat16", "float8_e4m3fn"):
        problem = AttentionProblem.of(
            "h100", **{**FACTS, "dtype": DTypes(q, "float8_e4m3fn", "bfloat16")}, batch=1,
            qo_len=4096, kv_len=4096, kv=Paged(16),
        )  # fmt: skip
        us = cost(problem).us
        assert us is not None
        rates.append(problem.work().flops / us / 1e6)
    h100 = devices.named("h100")
    assert rates == pytest.approx([h100.tflops, h100.fp8_tflops])


def test_equal_keys_mean_equal_problems() -> None:
    """One plan serves all calls of a key, so the key must say all that the problem does."""
    problems: dict[Any, set[AttentionProblem]] = {}
    for batch, qo_len, kv_len in itertools.product((1, 2, 3, 4, 5), (1, 3, 4, 5), (0, 3, 5, 8)):
        q, k = torch.empty(batch, qo_len, 4, 8), torch.empty(batch, kv_len, 2, 8)
        args = (q, k, k, q, None, None, None, {}, Variant())
        problems.setdefault(functional._key(*args), set()).add(functional._problem(*args))
    assert all(len(found) == 1 for found in problems.values())
    assert len(problems) > 20
