"""Where the dispatcher takes fa2_cuda for attention, and what it says where it does not."""

from __future__ import annotations

from typing import Any

import pytest

import attnhub
from attnhub import BlockSparse, DTypes, Paged, Ragged, Rope, Variant

GPUS = ("a100", "a10", "l40s", "rtx4090", "h100", "h200", "b200", "rtx5090")
FACTS: dict[str, Any] = {
    "num_qo_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
    "kv": Paged(16),
    "variant": Variant(causal=True),
}
FP8 = DTypes("bfloat16", "float8_e4m3fn", "bfloat16")
SERVED: dict[str, dict[str, Any]] = {
    "decode": {"batch": 64, "qo_len": 1, "kv_len": 4096},
    "prompts": {"batch": 4, "qo_len": 4096, "kv_len": 4096},
    "append": {"batch": 8, "qo_len": 64, "kv_len": 8192},
    "lengths on the device": {"metadata": "device"},
    "graph": {"graph": True, "metadata": "device"},
    "FP8 keys": {"dtype": FP8, "batch": 64, "qo_len": 1, "kv_len": 4096},
    "latent prefill": {"head_dim": (192, 128), "kv": Ragged(), "batch": 2, "qo_len": 2048},
    "wide heads": {"head_dim": 256},
    "rotation": {"variant": Variant(causal=True, rope=Rope())},
    "blocks": {"kv": BlockSparse(64, 64), "variant": Variant(soft_cap=30.0)},
    "deterministic": {"deterministic": True},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float32": (
        {"dtype": "float32"},
        "field='q_dtype', actual='float32', accepted='float16 or bfloat16'",
    ),
    "odd heads": ({"head_dim": 72}, "actual='72', accepted='a multiple of 16 up to 256'"),
    "rotated FP8 keys": (
        {"dtype": FP8, "variant": Variant(rope=Rope())},
        "keys that are rotated or changed no longer fit into FP8",
    ),
    "causal blocks": ({"kv": BlockSparse(64, 64)}, "come without their positions"),
}


def explain(device: str, facts: dict[str, Any]) -> attnhub.Decision:
    return attnhub.explain("attention", device=device, **FACTS | facts)


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("name", SERVED)
def test_is_chosen(name: str, device: str) -> None:
    chosen = explain(device, SERVED[name]).chosen
    assert chosen is not None
    assert chosen.name == "fa2_cuda"


@pytest.mark.parametrize("name", REFUSED)
def test_says_why_not(name: str) -> None:
    facts, why = REFUSED[name]
    decision = explain("h100", facts)
    told = {rejected.name: str(rejected.reasons) for rejected in decision.rejected}
    assert why in told["fa2_cuda"]


@pytest.mark.parametrize("device", ["cpu", "sm_75"])
def test_other_devices(device: str) -> None:
    decision = explain(device, {})
    assert "fa2_cuda" in {rejected.name for rejected in decision.rejected}
