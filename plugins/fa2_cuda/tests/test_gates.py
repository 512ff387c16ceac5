"""What the compilers make of the attention kernel: registers, spills, instructions, time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnhub import DTypes
from attnhub.plugin import AttentionProblem, KernelSpec, Rope, Variant, describe
from attnhub.testing.gates import AtLeast, Gate, suite
from attnhub_fa2_cuda.attention import Choices

CAUSAL = Variant(causal=True)
DEVICES = ("a100", "rtx4090", "h100", "rtx5090")


def kernel(device: str, name: str, **facts: Any) -> KernelSpec:
    """The kernel for batches of a kind: "prefill", "decode" or "mixed"."""
    problem = AttentionProblem.of(
        describe(device),
        **{
            "num_qo_heads": 32,
            "num_kv_heads": 8,
            "head_dim": 128,
            "dtype": "bfloat16",
            "kv": "paged",
            "page_size": 16,
            "variant": CAUSAL,
            **facts,
        },
    )
    return getattr(Choices(problem), name).spec(problem)


# A warp multiplies 2 m16 and 8 n8 tiles of scores 8 times, and 2 by 16 tiles of output 4 times.
# Keys and values are 16-byte copies: 8 of each for a thread and block, in prologue and loop.
# NOTE: the products of a block leave no register: some numbers come from local memory.
WIDE = Gate(
    max_registers=255,
    max_smem=0,
    stack=16,
    spills=32,
    forbidden=(),
    census={"HMMA": 2 * 8 * 8 + 2 * 16 * 4, "LDGSTS": AtLeast(2 * 2 * 8), "LDSM": AtLeast(80)},
)
# Half the keys of a block, and so half the products.
SHORT = replace(WIDE, census={"HMMA": 256 // 2, "LDGSTS": AtLeast(2 * 2 * 4)})
# 16 rows and 16 keys of a warp: 2 n8 tiles of scores 8 times, 16 tiles of output once.
DECODE_GATE = Gate(
    max_registers=240,
    max_smem=0,
    census={"HMMA": 2 * 8 + 16, "LDGSTS": AtLeast(2 * 2 * 8), "LDSM": AtLeast(24)},
)
# Both, the smaller one twice, as half of the CTAs begin with it.
MIXED_GATE = replace(WIDE, stack=96, spills=280, census={"HMMA": 256 + 2 * 32})

test_prefill = suite([(kernel(d, "prefill"), SHORT if d == "a100" else WIDE) for d in DEVICES])
test_decode = suite([(kernel(d, "decode"), DECODE_GATE) for d in DEVICES])
test_mixed = suite([(kernel("h100", "mixed"), MIXED_GATE)])
test_soft_cap = suite([(kernel("h100", "prefill", variant=Variant(soft_cap=30.0)), WIDE)])
FP8 = {"dtype": DTypes("bfloat16", "float8_e4m3fn", "bfloat16")}
test_fp8 = suite([(kernel("h100", "decode", **FP8), replace(DECODE_GATE, census={"HMMA": 32}))])
ROPE = Variant(causal=True, rope=Rope())
test_rope = suite([(kernel("h100", "decode", variant=ROPE), DECODE_GATE)])
# Heads of 256: 16 rows and 32 keys of a warp; 4 n8 tiles of scores 16 times, 32 of output twice.
D256 = replace(WIDE, stack=0, spills=0, census={"HMMA": 4 * 16 + 32 * 2})
test_wide_heads = suite([(kernel("h100", "prefill", head_dim=256), D256)])
